"""A request to stop that a run's driver finds in the run's directory.

It reaches drivers on any host that shares the directory, in a terminal, a batch job or
a notebook. A driver answers by removing it.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from scalelab.inputs.plain_files import parse_json, read_file
from scalelab.records.attempt import encode_json, write_atomically

LOOK_EVERY_S = 0.5
_NAME = "driver.stop"


def request_stop(run: Path, *, at_once: bool) -> Path:
    """Ask the driver of a run to stop; return the request, which it removes."""
    path = run / _NAME
    write_atomically(path, encode_json({"at_once": at_once}))
    return path


class StopRequests:
    """Passes requests on to the driver, as a context manager.

    ``came`` says that there was one.
    """

    def __init__(self, run: Path, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self.came = False
        self._path = run / _NAME
        self._look_every_s = look_every_s
        self._control: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._lock = threading.RLock()  # one signal may interrupt another
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)

    def __enter__(self) -> Self:
        """Start polling; requests meant for an earlier driver are dropped."""
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop polling."""
        self._end.set()
        self._thread.join()

    def control(self, drain: Callable[[], None], kill: Callable[[], None]) -> None:
        """Pass stop requests to these functions from now on, in another thread."""
        with self._lock:
            if self.came:
                raise KeyboardInterrupt
            self._control = drain, kill

    def stop(self, *, at_once: bool) -> None:
        """Pass on a request of this process, such as a signal, like any other."""
        with self._lock:
            self.came, control = True, self._control
        if control is not None:
            drain, kill = control
            (kill if at_once else drain)()

    def _watch(self) -> None:
        while not self._end.wait(self._look_every_s):
            at_once = self._take()
            if at_once is not None:
                self.stop(at_once=at_once)

    def _take(self) -> bool | None:
        # whether a request says at once; None: there is none
        try:
            content = read_file(self._path)
        except OSError:
            content = b""

        try:
            self._path.unlink()
            return bool(parse_json(content)["at_once"])
        except OSError:
            return None  # there is none, or a directory, which is no request
        except (ValueError, TypeError, KeyError):
            return False  # any content counts as a request
