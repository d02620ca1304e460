"""The row of the trainer: all that the rest of ScaleLab knows of this folder.

It loads no torch, and what needs torch is named by its path.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from scalelab.errors import SpecError
from scalelab.inputs.document import Scalar
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.problems import one_of, shown
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import (
    DEFAULT_TRAINER,
    DataDemand,
    Trainer,
    WorkloadNames,
)
from scalelab.training.engines.paths import ENGINES, engine_path
from scalelab.training.rank_options import OF_MODELS, RankOptions
from scalelab.training.workloads.introspection import names_of_built_in, names_of_own
from scalelab.training.workloads.table import BUILT_IN_WORKLOADS


class TorchTrainer(Trainer):
    """Trains models of torch, one process per device."""

    name = DEFAULT_TRAINER
    entry = "scalelab.training.rank:run_rank"
    framework = "torch"
    extra = "train"
    workloads: ClassVar = {
        name: workload.facts for name, workload in BUILT_IN_WORKLOADS.items()
    }
    strategies = tuple(ENGINES)
    process_parameters = RankOptions.__slots__
    self_test = "emulated"
    data_sets = ("cifar10",)

    def check_strategy(self, strategy: str) -> None:
        """Refuse a strategy without an engine."""
        engine_path(strategy)

    def check_name(self, workload: str) -> None:
        """Refuse what is neither built in nor a class of the user's own."""
        is_class = re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", workload)
        if workload not in self.workloads and not is_class:
            raise SpecError(
                f"workload={shown(workload)} is neither built in nor module:Class. "
                f"{one_of(self.workloads, workload)}",
                code="unknown_workload",
            )

    def check_keys(
        self,
        workload: str,
        parameters: Mapping[str, Any],
        options: Mapping[str, Sequence[Scalar]],
    ) -> None:
        """Refuse what acts on a model where a workload has none."""
        facts = self.workloads.get(workload)
        if facts is None or facts.trains_model:
            return

        for name in OF_MODELS:
            if name in {*parameters, *options}:
                raise SpecError(
                    f"workload={workload} has no model, so {name} has nothing to act "
                    "on. Leave it out.",
                    code="option_without_effect",
                )

        if "slow_rank_factor" in options:
            raise SpecError(
                f"workload={workload} computes nothing, so options.slow_rank_factor "
                "makes no rank slow. Leave it out.",
                code="option_without_effect",
            )

    def names(self, workload: str, code_directory: Path | None) -> WorkloadNames | None:
        """Return what the source of a built-in workload, or the user's class, says."""
        if built_in := BUILT_IN_WORKLOADS.get(workload):
            return names_of_built_in(built_in)
        return names_of_own(workload, code_directory) if code_directory else None

    def check_trials(
        self, workload: str, parameters: Mapping[str, Any], demand: DataDemand
    ) -> None:
        """Refuse what a built-in workload cannot be made with."""
        built_in = BUILT_IN_WORKLOADS.get(workload)
        if built_in:  # a class of the user's own may take such names itself
            RankOptions.split(parameters)
        if built_in and built_in.check:
            imported(built_in.check)(parameters, demand)

    def preload(self, workload: str, strategies: Iterable[str]) -> tuple[str, ...]:
        """Return the modules of ranks, engines and a built-in workload."""
        built_in = BUILT_IN_WORKLOADS.get(workload)
        modules = [self.entry.partition(":")[0]]
        if built_in is None or built_in.facts.trains_model:
            # The first optimiser of a process imports it, which takes about a second.
            modules.append("torch._dynamo")
            modules += [engine_path(name).partition(":")[0] for name in strategies]
        if built_in:
            modules += [built_in.path.partition(":")[0], *built_in.preload]
        return tuple(modules)

    def outcome_of(self, error: BaseException) -> Outcome | None:
        """Tell a device that is out of memory; torch has a class for that."""
        is_full = type(error).__name__ == "OutOfMemoryError"
        return Outcome.OUT_OF_MEMORY if is_full else None

    def leave_process(self) -> None:
        """Leave the other ranks."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    def obtain(self, data_set: str, directory: Path) -> Path:
        """Download a data set."""
        if data_set not in self.data_sets:
            return super().obtain(data_set, directory)
        from scalelab.training.workloads.cifar10 import obtain_cifar10

        where = directory.resolve()
        obtain_cifar10(where)
        return where


TRAINER = TorchTrainer()
