"""The study of a search, as Optuna keeps it: a journal in the run's directory.

The journal is a cache: what counts is what the attempts have left. It is made anew from
them where it is missing, cannot be read, or says something else.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from scalelab.experiment.tuning import Objective, TunedValues, TuneKeys
from scalelab.inputs.document import Scalar
from scalelab.inputs.plain_files import open_to_append, opened
from scalelab.records.attempt import append_all, storing

JOURNAL = "optuna.journal"
_DEFINITION = "scalelab"  # attribute of a study: what is tuned, and what is best
_COMPACT = (",", ":")  # as Optuna writes it
_TRIAL_ID = "trial_id"  # attribute of a study's trial

Settings = dict[str, Scalar]
Evaluations = Mapping[str, Mapping[int, float]]
"""Values of the one objective, by trial and step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a trial ended, in Optuna's words.

    ``infeasible`` names the constraint that it broke, such as the memory of a device:
    what samplers learn from, and a plain failure does not tell them.
    """

    settings: Settings
    state: TrialState
    values: list[float] | None = None
    infeasible: str = ""

    def frozen(
        self,
        trial_id: str,
        space: dict[str, BaseDistribution],
        evaluations: Mapping[int, float],
    ) -> FrozenTrial:
        """Return the trial as a study that is made anew has it."""
        values = self.values
        if self.state == TrialState.PRUNED and evaluations:
            values = [evaluations[max(evaluations)]]  # as Optuna has it

        return create_trial(
            state=self.state,
            values=values,
            params=self.settings,
            distributions=space,
            user_attrs={_TRIAL_ID: trial_id},
            intermediate_values=dict(evaluations),
            constraints={self.infeasible: 1.0} if self.infeasible else None,
        )


class _Journal(BaseJournalBackend):
    """Optuna's journal in the directory of a run, which one driver writes.

    The run's lease stands for a lock of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: list[dict[str, Any]] = []
        self._num_read = 0

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Return the logs from a number on, of whole lines."""
        with suppress(FileNotFoundError), opened(self._path) as file:
            file.seek(self._num_read)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._logs += map(json.loads, whole.splitlines())
            self._num_read += len(whole)
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append logs as lines, after the last whole line."""
        content = "".join(
            f"{json.dumps(log, separators=_COMPACT)}\n" for log in logs
        ).encode()
        self.read_logs(0)
        with storing(self._path):
            descriptor = open_to_append(self._path)
            try:
                os.ftruncate(descriptor, self._num_read)
                append_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class KeptStudy:
    """A study with a trial for each trial of a search, by the trial's id.

    Parameters
    ----------
    study
        Optuna's.
    keys
        What is tuned.
    identify
        Returns the id of the trial that has some settings.
    """

    def __init__(
        self, study: Study, keys: TuneKeys, identify: Callable[[Settings], str]
    ) -> None:
        self.study = study
        self._space = {name: _range(values) for name, values in keys.tune.items()}
        self._identify = identify
        self._known = {trial.user_attrs[_TRIAL_ID] for trial in _trials(study)}

    @classmethod
    def open(
        cls,
        directory: Path | None,
        keys: TuneKeys,
        objectives: Sequence[Objective],
        identify: Callable[[Settings], str],
        endings: Mapping[str, Ending],
        evaluations: Callable[[], Evaluations],
        *,
        seed: int,
    ) -> Self:
        """Open the study of a run, or make it from how its trials ended.

        Parameters
        ----------
        directory
            The run's, for its driver alone; None: nothing is written.
        endings
            How each trial ended that has.
        evaluations
            Returns what was reported of each, where the study is made anew.
        """
        study: Study | None = None
        reported: Evaluations = {}

        storage: InMemoryStorage | JournalStorage = InMemoryStorage()
        if directory is not None:
            journal = directory / JOURNAL
            study = _read(journal, _definition(keys, objectives))
            if study is None or not _agrees(study, endings):
                study = None
                with storing(journal):
                    journal.unlink(missing_ok=True)
            storage = _storage(journal)

        if study is None:
            study = _new(storage, directory, keys, objectives)
            reported = evaluations()

        kept = cls(study, keys, identify)
        for trial_id, ending in endings.items():
            kept.end(trial_id, ending, reported.get(trial_id, {}))

        # Begun anew, a generator would draw again what it has drawn.
        study.sampler = _sampler(keys, seed + len(_trials(study)))
        study.pruner = optuna.pruners.MedianPruner()
        return kept

    def begun(self) -> list[Settings]:
        """Return the settings of the trials that have not ended."""
        return [trial.params for trial in _trials(self.study, TrialState.RUNNING)]

    def begin(self, wanted: Settings | None) -> Settings:
        """Add a trial, with the settings wanted or those that the sampler chooses."""
        if wanted is not None:
            self.study.enqueue_trial(wanted)
        trial = self.study.ask(self._space)
        trial_id = self._identify(trial.params)
        self._known.add(trial_id)
        trial.set_user_attr(_TRIAL_ID, trial_id)
        return trial.params

    def end(
        self,
        trial_id: str,
        ending: Ending,
        evaluations: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Record how a trial ended, with all that have the same settings.

        ``evaluations`` are those of a trial that the study does not know.
        """
        if trial_id not in self._known:
            self.study.add_trial(ending.frozen(trial_id, self._space, evaluations))
            self._known.add(trial_id)
            return
        for frozen in self._unended(trial_id):
            trial = Trial(self.study, frozen._trial_id)
            if ending.infeasible:
                trial.set_constraint(ending.infeasible, 1.0)
            self.study.tell(trial, ending.values, state=ending.state)

    def report(self, trial_id: str, step: int, value: float) -> bool:
        """Record an evaluation; return whether the trial is to end."""
        frozen = next(iter(self._unended(trial_id)), None)
        if frozen is None:
            return False
        trial = Trial(self.study, frozen._trial_id)
        if step not in frozen.intermediate_values:
            trial.report(value, step)
        return trial.should_prune()

    def _unended(self, trial_id: str) -> list[FrozenTrial]:
        running = _trials(self.study, TrialState.RUNNING)
        return [trial for trial in running if trial.user_attrs[_TRIAL_ID] == trial_id]


def copied(journal: Path) -> Study | None:
    """Return a copy of a study in memory, all trials included; None: there is none."""
    with suppress(Exception), _quiet():
        (name,) = optuna.get_all_study_names(_storage(journal))
        memory = InMemoryStorage()
        optuna.copy_study(
            from_study_name=name, from_storage=_storage(journal), to_storage=memory
        )
        return optuna.load_study(study_name=name, storage=memory)
    return None


def _range(values: TunedValues) -> BaseDistribution:
    if values.choices:
        return CategoricalDistribution(values.choices)
    if values.whole:
        return IntDistribution(*values.whole)
    low, high = values.log or values.between or (0.0, 1.0)
    return FloatDistribution(low, high, log=values.log is not None)


def _definition(keys: TuneKeys, objectives: Sequence[Objective]) -> dict[str, Any]:
    tuned = {name: values.model_dump(mode="json") for name, values in keys.tune.items()}
    return {"tune": tuned, "objectives": list(map(str, objectives))}


def _trials(study: Study, *states: TrialState) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=states or None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Optuna announce nothing, in a process that may be a user's notebook."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _storage(journal: Path) -> JournalStorage:
    return JournalStorage(_Journal(journal))


def _read(journal: Path, definition: Mapping[str, Any]) -> Study | None:
    """Return the study that a journal holds; None: none, or one of something else."""
    with suppress(Exception), _quiet():  # whatever is wrong, it is made anew
        study = optuna.load_study(study_name=None, storage=_storage(journal))
        if study.user_attrs[_DEFINITION] == definition:
            return study

    return None


def _agrees(study: Study, endings: Mapping[str, Ending]) -> bool:
    """Tell whether each trial was begun, and each that ended there has ended here.

    The id is the last that is written of a trial before it begins.
    """
    for trial in _trials(study):
        trial_id = trial.user_attrs.get(_TRIAL_ID)
        if trial_id is None:
            return False
        if trial.state.is_finished() and trial_id not in endings:
            return False
    return True


def _new(
    storage: InMemoryStorage | JournalStorage,
    directory: Path | None,
    keys: TuneKeys,
    objectives: Sequence[Objective],
) -> Study:
    with _quiet():
        study = optuna.create_study(
            storage=storage,
            study_name=None if directory is None else directory.name,
            directions=[
                "minimize" if objective.is_smaller_better else "maximize"
                for objective in objectives
            ],
        )
        study.set_metric_names([objective.metric for objective in objectives])

    study.set_user_attr(_DEFINITION, _definition(keys, objectives))
    return study


def _sampler(keys: TuneKeys, seed: int) -> optuna.samplers.BaseSampler:
    if keys.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with _quiet():
        # trials that run count as bad ones, so that others are not alike
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
