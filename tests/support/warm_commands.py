"""Commands from a warm interpreter, which has imported what ``scalelab`` imports.

A command is forked from it, and is a process of its own: it has its session, folder,
environment, streams and exit code. Tests of how a command starts, or of how it is
stopped, start a new interpreter instead.
"""

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import IO, Any

_IMPORTED = (
    "distributed.dashboard.scheduler",
    "distributed.http.scheduler.prometheus",
    "plotly.graph_objects",
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
)


class WarmCommands:
    """Runs commands, each to its end, with an interpreter that is started once."""

    def __call__(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 200.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``scalelab`` with these words in the current folder."""
        with TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            asked = {
                "words": words,
                "folder": str(Path.cwd()),
                "environment": {**(os.environ if environment is None else environment)},
                "streams": [str(out), str(err)],
            }
            self._sent.write(json.dumps(asked) + "\n")
            self._sent.flush()
            pid = int(self._received.readline())
            watch = Timer(timeout_s, os.killpg, (pid, signal.SIGKILL))
            watch.start()
            status = int(self._received.readline())
            watch.cancel()
            return subprocess.CompletedProcess(
                words, status, out.read_text(), err.read_text()
            )

    @cached_property
    def _interpreter(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-W", "error", __file__]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    @property
    def _sent(self) -> IO[str]:
        assert self._interpreter.stdin is not None
        return self._interpreter.stdin

    @property
    def _received(self) -> IO[str]:
        assert self._interpreter.stdout is not None
        return self._interpreter.stdout

    def close(self) -> None:
        if "_interpreter" in vars(self):
            self._interpreter.communicate()


def _become(asked: Mapping[str, Any]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(asked["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    further = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [asked["folder"], *filter(None, further)]
    sys.argv[1:] = asked["words"]
    runpy.run_module("scalelab", run_name="__main__", alter_sys=True)


def _serve() -> None:
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
            sys.exit()
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
