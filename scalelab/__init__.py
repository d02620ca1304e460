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
    from scalelab.laws.published import LAWS
    from scalelab.laws.step_time.law import StepTimeLaw
    from scalelab.session import (
        Run,
        compare,
        dry_run,
        export,
        follow,
        import_table,
        load,
        runs,
        sweep,
    )
    from scalelab.training.workloads.base import Workload

__all__ = [
    "LAWS",
    "ConvergenceLaw",
    "MemoryLaw",
    "Run",
    "ScaleLabError",
    "StepTimeLaw",
    "Workload",
    "__version__",
    "compare",
    "dry_run",
    "export",
    "follow",
    "import_table",
    "load",
    "runs",
    "sweep",
]

_HOMES = {
    "LAWS": "scalelab.laws.published",
    "ConvergenceLaw": "scalelab.laws.convergence.law",
    "MemoryLaw": "scalelab.laws.memory.law",
    "Run": "scalelab.session",
    "ScaleLabError": "scalelab.errors",
    "StepTimeLaw": "scalelab.laws.step_time.law",
    "Workload": "scalelab.training.workloads.base",
    "compare": "scalelab.session",
    "dry_run": "scalelab.session",
    "export": "scalelab.session",
    "follow": "scalelab.session",
    "import_table": "scalelab.session",
    "load": "scalelab.session",
    "runs": "scalelab.session",
    "sweep": "scalelab.session",
}

# What to write instead of a guessed name; some are names of packages of this one
_INSTEAD = {
    "open": "scalelab.load('runs/NAME')",
    "read": "scalelab.load('runs/NAME')",
    "load_run": "scalelab.load('runs/NAME')",
    "open_run": "scalelab.load('runs/NAME')",
    "list_runs": "scalelab.runs()",
    "ls": "scalelab.runs()",
    "read_csv": "scalelab.import_table('table.csv', 'runs/NAME')",
    "from_csv": "scalelab.import_table('table.csv', 'runs/NAME')",
    "import_csv": "scalelab.import_table('table.csv', 'runs/NAME')",
    "read_table": "scalelab.import_table('table.csv', 'runs/NAME')",
    "plan": "scalelab.dry_run('experiment.yaml')",
    "run": "scalelab.sweep('experiment.yaml')",
    "run_sweep": "scalelab.sweep('experiment.yaml')",
    "Sweep": "scalelab.sweep('experiment.yaml')",
    "Experiment": "scalelab.dry_run('experiment.yaml')",
    "recommend": "scalelab.load('runs/NAME').recommend()",
    "report": "scalelab.load('runs/NAME').report()",
    "fit": "scalelab.load('runs/NAME').fit()",
    "predict": "scalelab.load('runs/NAME').fit().predict(world_size=32)",
    "status": "scalelab.load('runs/NAME').summary",
    "doctor": "`scalelab doctor` in a shell",
}


def __getattr__(name: str) -> Any:
    # Importing scalelab must stay cheap: torch, dask and pandas load on first use.
    if name not in _HOMES:
        problem = f"module 'scalelab' has no attribute {name!r}"
        if name in _INSTEAD:
            raise AttributeError(f"{problem}. Write {_INSTEAD[name]}.")
        raise AttributeError(f"{problem}. Valid: {', '.join(__all__)}.")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
