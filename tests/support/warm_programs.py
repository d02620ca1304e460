"""Programs of Python from a warm interpreter, which has imported PyTorch.

A rank server that preloads this module does not execute ``python FILE ...``: the
process that would, becomes the program. Its process id, parent, streams, signals and
variables are the same, but the modules of PyTorch are there. Tests of how a program
starts use a server without this module.

Run by itself, this file is the server of a warm interpreter.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch._dynamo  # every optimizer imports it
from warm_interpreter import serve

_execute = os.execvp
_added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_installed = [folder for folder in sys.path[1:] if folder not in _added]


def _execute_warm(program: str, words: Sequence[str]) -> NoReturn:
    if program == "python" and words[1].endswith(".py"):
        _become(words[1:])
    _execute(program, words)


def _become(words: Sequence[str]) -> NoReturn:
    _leave_server()
    file = Path(words[0]).absolute()
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [str(file.parent), *filter(None, further), *_installed]
    sys.argv[:] = words
    sys.meta_path.insert(0, _Imported())
    del sys.modules["torch"]
    sys.modules.pop("sitecustomize", None)
    with suppress(ImportError):
        import sitecustomize  # noqa: F401

    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(file)
    _exit(_status_of(compile(file.read_bytes(), file, "exec"), vars(main)))


def _leave_server() -> None:
    """Give up what a program that is executed does not get."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder itself was open
            if not os.get_inheritable(int(name)):
                os.close(int(name))

    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in os.environ)  # type: ignore[union-attr]


class _Imported(MetaPathFinder, Loader):
    """Finds PyTorch as it is already imported, when the program imports it."""

    _spec = torch.__spec__

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return torch

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _status_of(code: Any, names: dict[str, Any]) -> int:
    try:
        exec(code, names)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _exit(status: int) -> NoReturn:
    """End as an interpreter does: after its threads, and what is registered."""
    ctypes.pythonapi.Py_Exit(status)
    raise AssertionError


if __name__ == "__main__":
    serve(_become)
else:
    os.execvp = _execute_warm  # type: ignore[assignment]
