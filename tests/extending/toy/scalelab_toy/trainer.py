"""A trainer of plain processes, which count."""

from pathlib import Path
from typing import ClassVar

from scalelab.kinds.trainers import Trainer, WorkloadFacts, WorkloadNames


class Counting(Trainer):
    """Counts samples, one process per device."""

    name = "toy"
    entry = "scalelab_toy.process:count"
    workloads: ClassVar = {"counting": WorkloadFacts()}

    def names(self, workload: str, code_directory: Path | None) -> WorkloadNames:
        """Return the one parameter."""
        return WorkloadNames(parameters=("pause_s",), metrics=())
