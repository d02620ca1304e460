"""The probe: sees the steps of PyTorch's optimizers inside a user's program.

It waits until the program imports torch; one without PyTorch pays for one look at each
name that it imports. What is seen goes to a stream of the process, whose format
:mod:`scalelab_probe.stream` describes. Whatever goes wrong in the probe is written
there, and the program goes on.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def install(folder: str) -> None:
    """Look into PyTorch once the program has imported it; write below ``folder``."""
    sys.meta_path.insert(0, _Finder(folder))


class _Finder:
    """Finds torch as the finders behind it do, and hooks it when it is there."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in behind)
        spec = next((finder for finder in found if finder is not None), None)
        if spec is not None and spec.loader is not None:
            self._hook_after(spec.loader)
        return spec

    def _hook_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                from scalelab_probe.recorder import Recorder

                Recorder(self._folder).hook()
            except Exception:  # the program must run as it would without the probe
                pass

        loader.exec_module = exec_module
