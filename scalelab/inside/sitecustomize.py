"""Starts the probe in a process of a user's program, before the program.

Python runs a module of this name at its start. ScaleLab puts this folder first on the
``PYTHONPATH`` of the processes that a command starts; the ``sitecustomize`` that is
hidden so is run as well. Nothing here imports ScaleLab, and the syntax is that of
Python 3.8: the program may run in an environment of its own.
"""

import os
import sys
from importlib.machinery import PathFinder


def _start_probe() -> None:
    try:
        if "SCALELAB_PROBE" in os.environ:
            import scalelab_probe

            scalelab_probe.install(os.environ["SCALELAB_PROBE"])
    except Exception:  # the program must run as it would without the probe
        sys.modules.pop("scalelab_probe", None)


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    others = [folder for folder in sys.path if os.path.abspath(folder) != here]

    spec = PathFinder.find_spec(__name__, others)
    if spec is None or spec.loader is None:
        return

    from importlib.util import module_from_spec

    hidden = sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(hidden)


_start_probe()
_run_hidden()
