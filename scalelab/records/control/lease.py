"""One driver per run: a lease file with a heartbeat.

A file lock would be simpler, but on shared file systems it may be local to a node. The
holder beats by counting up inside its lease; whoever wants the run decides

- on the same host (name, boot and process namespace agree) by whether the process
  still lives, at once;
- from any other host by watching the count on its own monotonic clock: a lease that
  does not move for ``patience_s`` is stale.

No clock of one host is compared with that of another, so a jumping clock neither breaks
a living lease nor keeps a dead one.
"""

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from scalelab.errors import LeaseError, StoreError
from scalelab.inputs.plain_files import parse_json, read_file
from scalelab.records.attempt import storing, write_all

LEASE, LOG = "driver.lease", "driver.log"
HEARTBEAT_S = 5.0
PATIENCE_S = 30.0
# Bytes of a lease; constant, so that a beat overwrites in place on a full disk too.
_WIDTH = 512


class Lease:
    """The right to write into a run, as a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.path = path
        self._heartbeat_s = heartbeat_s
        self._patience_s = patience_s
        self._identity = {**this_process(), "token": uuid.uuid4().hex, "beat": 0}
        self._descriptor = -1
        self._writing = threading.Lock()
        self._file_id: tuple[int, int] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def __enter__(self) -> Self:
        """Take the lease."""
        while not self._create():
            holder = _read(self.path)
            if holder is not None:
                self._wait_until_stale(holder)
                self._remove(holder)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            if self.is_held:
                self.path.unlink()
        os.close(self._descriptor)

    @property
    def is_held(self) -> bool:
        """The lease file is still the one this process created."""
        return self._file_id == _file_id(self.path)

    def say_begun(self) -> None:
        """Record that the sweep has begun: it has its nodes, or waits for them."""
        self._identity["has_begun"] = True
        self._write()

    def require(self) -> None:
        """Raise an error unless the lease is still held."""
        with storing(self.path):
            if self.is_held:
                return
            holder = _read(self.path)
            taker = f"{_name(holder)} holds it now" if holder else "the file is gone"
            raise LeaseError(
                f"This driver lost its lease {self.path}: {taker}. A driver that "
                f"stands still for {self._patience_s:g} s may lose its run. Stop one "
                "of the two and run the sweep again: it resumes."
            )

    def _create(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with storing(self.path):
            try:
                self._descriptor = os.open(self.path, flags, 0o644)
            except FileExistsError:
                return False
            write_all(self._descriptor, self._content())
            status = os.fstat(self._descriptor)

        self._file_id = (status.st_dev, status.st_ino)
        return True

    def _content(self) -> bytes:
        return json.dumps(self._identity).encode().ljust(_WIDTH)

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat_s):
            self._write()

    def _write(self) -> None:
        # Written through the open file: where another driver moved it aside, this
        # touches the moved file and never the other's lease. Flushed, because other
        # clients of a network file system see only what has left this one.
        with self._writing, suppress(OSError):
            self._identity["beat"] += 1
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            write_all(self._descriptor, self._content())
            os.fsync(self._descriptor)

    def _wait_until_stale(self, holder: Mapping[str, Any]) -> None:
        if _is_same_host(holder):
            if _is_alive(holder):
                raise self._refusal(holder)
            return

        deadline = time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            time.sleep(self._heartbeat_s / 2)
            now = _read(self.path)
            if now is None:
                return
            if now != holder:
                raise self._refusal(now)

    def _refusal(self, holder: Mapping[str, Any]) -> LeaseError:
        run, log = self.path.parent, self.path.with_name(LOG)
        follow = f" and `tail -f {log}`" if log.exists() else ""
        remedy = (
            "That is this very process: end its other sweep."
            if _is_same_host(holder) and holder.get("pid") == os.getpid()
            else f"Follow it with `scalelab status {run}`{follow}, or stop it with "
            f"`scalelab stop {run}`."
        )

        return LeaseError(
            f"{run} is being run by {_name(holder)}, {_age(self.path)}. One driver "
            f"writes a run at a time. {remedy} Then run the same command again: it "
            "resumes."
        )

    def _remove(self, holder: Mapping[str, Any]) -> None:
        # Moved aside first, so that only one of several processes succeeds.
        aside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        with storing(self.path):
            try:
                self.path.rename(aside)
            except FileNotFoundError:
                return
            if _parse(read_file(aside)) != holder:
                # Its holder beat after all, or another driver was quicker and this
                # moved its new lease: put it back.
                with suppress(FileExistsError):
                    os.link(aside, self.path)
            aside.unlink()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The holder of a lease."""

    pid: int | None  # None where the lease cannot be read
    host: str | None
    is_here: bool
    has_begun: bool
    text: str


def read_holder(path: Path) -> Holder | None:
    """Return who holds a lease, if anybody that lives or may live does."""
    holder = _read(path)
    if holder is None or has_ended(holder):
        return None

    return Holder(
        pid=holder.get("pid"),
        host=holder.get("host"),
        is_here=_is_same_host(holder),
        has_begun=bool(holder.get("has_begun")),
        text=f"{_name(holder)}, {_age(path)}",
    )


def signal_holder(path: Path, number: int) -> bool:
    """Send a signal to the process that holds a lease here; tell whether it was sent.

    A lease is a file that anybody may have written who can write there. The process
    must have begun when the lease says, and hold that very file open.
    """
    try:
        holder = _parse(read_file(path))
        if not _is_same_host(holder):
            return False
        process = os.pidfd_open(holder["pid"])
    except OSError:
        return False

    try:
        pid, file_id = holder["pid"], _file_id(path)
        opened = {
            _file_id(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()
        }
        if _start_of(pid) != holder.get("start") or file_id not in opened:
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False  # it has just ended, or is another user's
    finally:
        os.close(process)
    return True


def this_process() -> dict[str, Any]:
    """Return an identity of this process, unique over hosts, as JSON values."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": pid,
        "start": _start_of(pid),
    }


def has_ended(process: Mapping[str, Any]) -> bool:
    """Tell whether a process of this host, by :func:`this_process`, has ended.

    False where that cannot be seen from here.
    """
    return _is_same_host(process) and not _is_alive(process)


def _boot() -> str:
    # this boot of this host and its process namespace; empty where unknown
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    # when a process started, in ticks since boot; None when it is no more
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else ticks


def _is_same_host(holder: Mapping[str, Any]) -> bool:
    here = (socket.gethostname(), _boot())
    return bool(here[1]) and here == (holder.get("host"), holder.get("boot"))


def _is_alive(holder: Mapping[str, Any]) -> bool:
    if (start := _start_of(holder["pid"])) is not None:
        return start == holder.get("start")
    try:
        os.kill(holder["pid"], 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # hidden, as another user's
    return False  # ours and not shown as living: a zombie


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        return _parse(read_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror}. Remove it if no driver runs."
        ) from error


def _parse(content: bytes) -> Mapping[str, Any]:
    try:
        values = dict(parse_json(content))
        if type(values["pid"]) is not int or not 0 < values["pid"] < 2**31:
            raise ValueError(values["pid"])
    except (KeyError, TypeError, ValueError):
        return {"torn": content.hex()}
    return values


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _name(holder: Mapping[str, Any]) -> str:
    if "pid" not in holder:
        return "a driver whose lease cannot be read"
    return f"process {holder.get('pid')} on host {holder.get('host')}"


def _age(path: Path) -> str:
    try:
        seconds = time.time() - path.stat().st_mtime
    except OSError:
        return "which has just ended"
    return f"last heard of {max(seconds, 0.0):.0f} s ago"
