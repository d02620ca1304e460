"""Commands of ``scalelab`` from a warm interpreter, which has imported the package."""

import os
import runpy
import sys
from importlib import import_module

from warm_interpreter import serve

_IMPORTED = (
    "bokeh.application.handlers",
    "cryptography.hazmat.backends",
    "distributed.dashboard.scheduler",
    "distributed.http.scheduler.prometheus",
    "plotly.graph_objects",
    "plotly.graph_objs.layout",
    "plotly.offline",
    "pyarrow.parquet",
    "rich.progress",
    "scalelab.cli.main",
    "scalelab.cli.recommend_command",
    "scalelab.cli.sweep_command",
    "scalelab.cluster.local",
    "scalelab.recommend.by_device",
    "scalelab.recommend.money.waits",
    "scalelab.report.html",
    "scalelab.report.scaling",
    "scalelab.running.execution",
    "scalelab.scheduling.driver",
    "scalelab.session.parts",
    "scalelab.training.trainer",
)


def _become(words: list[str]) -> None:
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.getcwd(), *filter(None, further)]
    sys.argv[1:] = words
    runpy.run_module("scalelab", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    serve(_become)
