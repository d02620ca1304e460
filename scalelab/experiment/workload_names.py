"""Names of a workload's parameters and metrics, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalelab.errors import SpecError

COMPILE = "compile"
RANK_PARAMETERS = (
    "memory_limit_bytes",
    "loader_workers",
    "prefetch",
    "pin_memory",
    COMPILE,
)
"""What every workload takes: ``scalelab.training.rank_options.RankOptions``."""
CLASSIFIER_METRICS = ("val_acc", "val_loss")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadNames:
    """Names of the parameters that a workload takes and the metrics it reports.

    Parameters
    ----------
    metrics
        What an evaluation measures; none: there is nothing to evaluate on; None: not
        known before an evaluation.
    """

    parameters: tuple[str, ...]
    required: tuple[str, ...] = ()
    is_open: bool = False
    metrics: tuple[str, ...] | None = None

    def check_parameters(self, workload: str, given: Mapping[str, Any]) -> None:
        """Refuse unknown or missing parameters, options of the rank excepted."""
        unknown = [] if self.is_open else sorted(set(given) - set(self.parameters))
        if unknown:
            raise SpecError(
                f"{unknown[0]}={given[unknown[0]]!r} is no parameter of workload "
                f"{workload!r}. It takes: {', '.join(self.parameters) or 'none'}; "
                f"every workload takes: {', '.join(RANK_PARAMETERS)}."
            )
        missing = [name for name in self.required if name not in given]
        if missing:
            raise SpecError(
                f"Workload {workload!r} needs {', '.join(missing)}. Write workload: "
                f"{{name: {workload}, {missing[0]}: ...}}."
            )

    def check_metric(self, workload: str, metric: str, key: str = "target") -> None:
        """Refuse a target or a condition whose metric no evaluation reports."""
        if self.metrics == ():
            raise SpecError(
                f"{key} metric {metric!r} is not measured by {workload}: it has no "
                "held-out data. Measure throughput alone, or train a workload that "
                "has some."
            )
        if self.metrics is not None and metric not in self.metrics:
            raise SpecError(
                f"{key} metric {metric!r} is not measured by {workload}. It measures: "
                f"{', '.join(sorted(self.metrics))}."
            )
