"""How many GPUs should this training job use? Measure a sweep, fit laws, recommend.

>>> import scalelab
>>> run = scalelab.sweep("experiments/digits.yaml")  # doctest: +SKIP
>>> run.recommend(max_time="4h")  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scalelab._version import __version__

if TYPE_CHECKING:
    from scalelab.errors import ScaleLabError
    from scalelab.laws.convergence.law import ConvergenceLaw
    from scalelab.laws.memory.law import MemoryLaw
    from scalelab.laws.step_time.law import StepTimeLaw
    from scalelab.session import Run, import_table, load, sweep
    from scalelab.training.workloads.base import Workload

__all__ = [
    "ConvergenceLaw",
    "MemoryLaw",
    "Run",
    "ScaleLabError",
    "StepTimeLaw",
    "Workload",
    "__version__",
    "import_table",
    "load",
    "sweep",
]

_HOMES = {
    "ConvergenceLaw": "scalelab.laws.convergence.law",
    "MemoryLaw": "scalelab.laws.memory.law",
    "Run": "scalelab.session",
    "ScaleLabError": "scalelab.errors",
    "StepTimeLaw": "scalelab.laws.step_time.law",
    "Workload": "scalelab.training.workloads.base",
    "import_table": "scalelab.session",
    "load": "scalelab.session",
    "sweep": "scalelab.session",
}


def __getattr__(name: str) -> Any:
    # Importing scalelab must stay cheap: torch, dask and pandas load on first use.
    if name not in _HOMES:
        raise AttributeError(f"module 'scalelab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
