"""Interpreters that are started once, and from which processes are forked.

A forked process finds its modules imported. It has its own session, folder,
environment, streams and exit code. Tests of how a program starts, or of how it is
stopped, start a new interpreter instead.
"""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import IO, Any

Become = Callable[[list[str]], None]


class WarmInterpreter:
    """Runs processes, each to its end, from an interpreter that is started once.

    The interpreter runs the file ``server``, which imports modules and calls
    :func:`serve`.
    """

    def __init__(self, server: str, *options: str) -> None:
        file = Path(__file__).with_name(server)
        self._words = (sys.executable, *options, str(file))

    def __call__(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 200.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a process with these words in the current folder."""
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
        pipe = subprocess.PIPE
        return subprocess.Popen(self._words, stdin=pipe, stdout=pipe, text=True)

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


def serve(become: Become) -> None:
    """Fork a process for each line of the input, and run its words there."""
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _take_over(asked)
            become(asked["words"])
            sys.exit()
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _take_over(asked: Mapping[str, Any]) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(asked["streams"], start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
