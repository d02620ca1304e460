"""Trainers: what runs the workloads of an experiment, one rank per device.

A workload is named ``NAME``, of the default trainer, or ``TRAINER/NAME``. Everything
that ScaleLab has to know of a trainer is asked of its :class:`Trainer`, whose module
loads no framework: what needs one is named by its path, ``module:attribute``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.registry import Registry

DEFAULT_TRAINER = "torch"
# What stands in place of the name of a workload where a trial runs a command.
COMMAND = "command"
_ONE_VALUE = re.compile(r"(\W*(bool|int|float|str|None))+\W*")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadFacts:
    """What is known of a workload of a trainer before any of its trials.

    Parameters
    ----------
    metrics
        What an evaluation measures; none: there is nothing to evaluate on.
    convergence_needs
        Parameter without which it has no metric to reach; None: it always has.
    tokens_axis
        Parameter that says how many tokens a sample has; None: samples are no
        sequences.
    trains_model
        There are parameters to serve and layers to divide.
    counts_flops
        Its ranks tell the operations of a sample.
    declares_times
        Times are declared, not measured: shared hardware does not matter.
    """

    metrics: tuple[str, ...] = ()
    has_batch_norm: bool = False
    convergence_needs: str | None = None
    tokens_axis: str | None = None
    trains_model: bool = True
    counts_flops: bool = False
    declares_times: bool = False


def taking_one_value(types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the parameters that take one value and no list, of these types.

    >>> taking_one_value({"deep": "bool", "seed": "int | None", "sizes": "list[int]"})
    ('deep', 'seed')
    """
    return tuple(name for name, kind in types.items() if _ONE_VALUE.fullmatch(kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadNames:
    """Names of the parameters that a workload takes and the metrics it reports.

    Parameters
    ----------
    required
        Parameters without a default.
    single
        Parameters that take one value and no list, as far as that is known.
    is_open
        It takes parameters of any name.
    metrics
        What an evaluation measures; none: there is nothing to evaluate on; None: not
        known before an evaluation.
    """

    parameters: tuple[str, ...]
    required: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    is_open: bool = False
    metrics: tuple[str, ...] | None = None

    def check_parameters(
        self, workload: str, given: Mapping[str, Any], of_every: Sequence[str] = ()
    ) -> None:
        """Refuse unknown or missing parameters; ``of_every`` workload takes others.

        One of these that the workload itself takes is its own.
        """
        values = {
            name: value
            for name, value in given.items()
            if name not in of_every or name in self.parameters
        }
        unknown = [] if self.is_open else sorted(set(values) - set(self.parameters))
        if unknown:
            raise SpecError(
                f"{unknown[0]}={values[unknown[0]]!r} is no parameter of workload "
                f"{workload!r}. It takes: {', '.join(self.parameters) or 'none'}; "
                f"every workload takes: {', '.join(of_every) or 'none'}.",
                code="unknown_parameter",
            )

        for name in self.single:
            if isinstance(values.get(name), list | tuple):
                raise SpecError(
                    f"workload.{name}={shown(values[name])} is a list, where workload "
                    f"{workload!r} takes one value. To try each of them, write "
                    f"options: {{{name}: {shown(values[name])}}}.",
                    code="list_of_parameter",
                )

        missing = [name for name in self.required if name not in values]
        if missing:
            raise SpecError(
                f"Workload {workload!r} needs {', '.join(missing)}. Write workload: "
                f"{{name: {workload}, {missing[0]}: ...}}.",
                code="parameter_missing",
            )

    def check_metric(self, workload: str, metric: str, key: str = "target") -> None:
        """Refuse a target or a condition whose metric no evaluation reports."""
        if self.metrics == ():
            raise SpecError(
                f"{key} metric {metric!r} is not measured by {workload}: it has no "
                "held-out data. Measure throughput alone, or train a workload that "
                "has some.",
                code="no_held_out_data",
            )

        if self.metrics is not None and metric not in self.metrics:
            raise SpecError(
                f"{key} metric {metric!r} is not measured by {workload}. It measures: "
                f"{', '.join(sorted(self.metrics))}.",
                code="unknown_metric",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DataDemand:
    """The demand of trials on the data of a workload.

    Parameters
    ----------
    global_batch_size
        Largest batch that is drawn from one epoch; 1: none is.
    data_parallel_size
        Most ranks that draw samples of their own.
    has_files
        Trials read the files of this machine, so that they can be looked at.
    """

    global_batch_size: int
    data_parallel_size: int
    has_files: bool


class Trainer:
    """A program that trains workloads: the one object that sweeps ask about it.

    Names of workloads are given to its methods without the trainer's own. What they
    refuse they refuse with a ``SpecError``: what is wrong, the rule, and what to do.

    Attributes
    ----------
    name
        What stands before ``/`` in an experiment.
    entry
        Path, ``module:function``, of what every process of a trial calls, ranks and
        parameter servers alike: ``entry(spec, identity, rendezvous, progress)`` with an
        ``AttemptSpec``, a ``RankIdentity``, the address where processes meet, and a
        function to call with the number of steps done. Rank 0 returns an
        ``AttemptResult``, the others None.
    framework, extra
        Package that nodes import first, and the extra of ScaleLab that installs it;
        empty: none.
    workloads
        What is known of each workload that has a name of its own.
    strategies
        Names of the strategies that it runs.
    process_parameters
        Names of parameters that every workload takes.
    self_test
        A workload that two ranks step in a moment, for ``scalelab doctor``; None: none.
    data_sets
        Names that :meth:`obtain` knows.
    """

    name: ClassVar[str]
    entry: ClassVar[str]
    framework: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    workloads: ClassVar[Mapping[str, WorkloadFacts]]
    strategies: ClassVar[tuple[str, ...]] = ("ddp",)
    process_parameters: ClassVar[tuple[str, ...]] = ()
    self_test: ClassVar[str | None] = None
    data_sets: ClassVar[tuple[str, ...]] = ()

    def check_strategy(self, strategy: str) -> None:
        """Refuse a strategy, by name, that it cannot run.

        By default one that is not in :attr:`strategies`.
        """
        if strategy not in self.strategies:
            raise SpecError(
                f"parallelism={shown(strategy)} is not run by trainer {self.name}. "
                f"{one_of(self.strategies, strategy)}",
                code="strategy_not_run",
            )

    def check_name(self, workload: str) -> None:
        """Refuse a name that stands for no workload.

        By default one that is not in :attr:`workloads`.
        """
        if workload not in self.workloads:
            raise SpecError(
                f"workload={shown(workload)} is not known to trainer {self.name}. "
                f"{one_of(self.workloads, workload)}",
                code="unknown_workload",
            )

    def check_keys(
        self,
        workload: str,
        parameters: Mapping[str, Any],
        options: Mapping[str, Sequence[Scalar]],
    ) -> None:
        """Refuse parameters and options that have no effect on a workload.

        Parameters
        ----------
        parameters
            As the experiment gives them.
        options
            Values that it lists of each further axis.
        """

    def names(self, workload: str, code_directory: Path | None) -> WorkloadNames | None:
        """Return names of parameters and metrics of a workload; None: not known.

        Parameters
        ----------
        code_directory
            Folder of the user's code; None: it is run by another interpreter than this
            one, so that it cannot be asked.
        """
        return None

    def check_trials(
        self, workload: str, parameters: Mapping[str, Any], demand: DataDemand
    ) -> None:
        """Refuse values of parameters that no trial can run with."""

    def preload(self, workload: str, strategies: Iterable[str]) -> tuple[str, ...]:
        """Return the modules that a node imports once, before it forks ranks.

        A user's own module is not among them: it belongs to one version of the code.
        """
        return ()

    def outcome_of(self, error: BaseException) -> Outcome | None:
        """Return what an error that ended a rank stands for; None: nothing special."""
        return None

    def leave_process(self) -> None:
        """Undo what a rank leaves to the end of its process, where that lives on."""

    def obtain(self, data_set: str, directory: Path) -> Path:
        """Put a data set of :attr:`data_sets` into a folder; return the folder."""
        raise SpecError(
            f"Trainer {self.name} has no data set {shown(data_set)}.",
            code="unknown_data_set",
        )


class _Trainers(Registry[Trainer]):
    def _load(self, name: str) -> Trainer:
        if name == DEFAULT_TRAINER and name not in self._outside:
            raise SpecError(
                f"The trainer {name!r}, which runs workloads, is not installed. It is "
                "an entry point of ScaleLab: in a checkout that was installed before "
                "it had one, run `pip install -e .` again.",
                code="trainer_missing",
            )
        return super()._load(name)


TRAINERS = _Trainers("scalelab.trainers", Trainer, key="trainer", built_in=())


def trainer_of(workload: str) -> tuple[Trainer, str]:
    """Return the trainer of a workload, and what the trainer calls it."""
    trainer, _, name = workload.rpartition("/")
    return TRAINERS[trainer or DEFAULT_TRAINER], name


def find_trainer(workload: str) -> tuple[Trainer, str] | None:
    """Return as :func:`trainer_of` does; None: it is a trainer from elsewhere.

    What was measured with it can be read after it was uninstalled.
    """
    trainer = workload.rpartition("/")[0]
    return None if trainer and trainer not in TRAINERS else trainer_of(workload)


def facts_of(workload: str) -> WorkloadFacts | None:
    """Return what is known of a workload before its trials; None: nothing.

    Nothing is known of a command, of a class of the user's own, and where the trainer
    is not installed.
    """
    found = None if workload == COMMAND else find_trainer(workload)
    return found and found[0].workloads.get(found[1])
