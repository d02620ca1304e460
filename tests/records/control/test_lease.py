import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from scalelab.errors import LeaseError, StoreError
from scalelab.records.control import lease as lease_module
from scalelab.records.control.lease import Lease, read_holder, signal_holder

HOLDER = """
    import sys, time
    from pathlib import Path
    from scalelab.records.control.lease import Lease, read_holder

    with Lease(Path(sys.argv[1]), heartbeat_s=float(sys.argv[2])):
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.lease"


@pytest.fixture
def start_holder(path: Path) -> Iterator[Callable[..., Any]]:
    holders = []

    def start(heartbeat_s: float = 0.05) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)]
        holder = subprocess.Popen(
            [*command, str(heartbeat_s)], stdout=subprocess.PIPE, text=True
        )
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def pretend_another_host(path: Path, **changes: object) -> None:
    """Rewrite a lease in place, as its holder does, so that it looks foreign."""
    values = json.loads(path.read_bytes()) | {"host": "far", "boot": "other"} | changes
    path.write_bytes(json.dumps(values).encode().ljust(512))


def test_a_living_driver_keeps_its_run(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    holder = start_holder()
    message = (
        rf"is being run by process {holder.pid} on host {socket.gethostname()}, last "
        rf"heard of \d+ s ago\. One driver .* `scalelab stop {path.parent}`\. Then run "
    )
    with pytest.raises(LeaseError, match=message), Lease(path):
        pass


def test_a_stopped_driver_keeps_its_run(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    holder = start_holder()
    holder.send_signal(signal.SIGSTOP)
    with (
        pytest.raises(LeaseError, match="is being run by"),
        Lease(path, patience_s=0.1),
    ):
        pass
    holder.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_dead_driver_loses_its_run_at_once(
    path: Path, start_holder: Callable[..., Any], is_reaped: bool
) -> None:
    holder = start_holder()
    holder.kill()
    if is_reaped:
        holder.wait()
    else:
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    with Lease(path, patience_s=3600) as lease:
        assert lease.is_held
        assert json.loads(path.read_bytes())["pid"] == os.getpid()
    assert os.listdir(path.parent) == []


def test_a_process_number_used_again_is_not_the_driver(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    start_holder()
    values = json.loads(path.read_bytes()) | {"start": "1"}
    path.unlink()
    path.write_text(json.dumps(values))
    with Lease(path, patience_s=3600) as lease:
        assert lease.is_held


def test_a_beating_lease_of_another_host_is_respected(
    path: Path, start_holder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_holder(0.02)
    monkeypatch.setattr(lease_module, "_boot", lambda: "another boot")
    message = rf"`scalelab status {path.parent}`, or stop it with `scalelab stop"
    with (
        pytest.raises(LeaseError, match=message),
        Lease(path, heartbeat_s=0.02, patience_s=600),
    ):
        pass


@pytest.mark.slow
def test_a_still_lease_of_another_host_is_taken_over(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    start_holder(600)
    pretend_another_host(path)
    started = time.monotonic()
    with Lease(path, heartbeat_s=0.05, patience_s=0.4) as lease:
        assert time.monotonic() - started >= 0.4
        assert lease.is_held


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_torn_lease_is_taken_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with Lease(path, heartbeat_s=0.05, patience_s=0.1) as lease:
        assert lease.is_held


def test_a_lease_that_cannot_be_read_is_said(path: Path) -> None:
    path.with_name("aside").write_text("{}")
    path.symlink_to("aside")
    with pytest.raises(StoreError, match=r"driver\.lease cannot be read: it is a link"):
        Lease(path).__enter__()


def test_a_torn_lease_names_nobody(path: Path) -> None:
    path.write_bytes(b"{")
    holder = read_holder(path)
    assert holder is not None
    assert holder.text.startswith("a driver whose lease cannot be read, last heard of")


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_a_jumping_clock_changes_nothing(
    path: Path,
    start_holder: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    jump_s: float,
) -> None:
    start_holder(0.02)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    os.utime(path, (now() + jump_s, now() + jump_s))
    with pytest.raises(LeaseError, match=r"last heard of \d+ s ago"), Lease(path):
        pass
    monkeypatch.setattr(lease_module, "_boot", lambda: "another boot")
    with pytest.raises(LeaseError), Lease(path, heartbeat_s=0.02, patience_s=600):
        pass


def test_the_same_process_cannot_run_it_twice(path: Path) -> None:
    with Lease(path):
        with pytest.raises(LeaseError, match="this very process: end its other sweep"):
            Lease(path).__enter__()
        assert path.exists()


def test_the_holder_beats(path: Path) -> None:
    with Lease(path, heartbeat_s=0.01):
        beats = set()

        def read_beat() -> bool:
            beats.add(json.loads(path.read_bytes())["beat"])
            return len(beats) > 3

        wait_until(read_beat, "the lease is read")
        assert path.stat().st_size == 512


def test_a_driver_notices_that_it_was_replaced(path: Path, tmp_path: Path) -> None:
    with Lease(path, heartbeat_s=0.01) as lease:
        lease.require()
        path.rename(tmp_path / "aside")
        path.write_text(json.dumps({"host": "far", "pid": 42}))
        with pytest.raises(LeaseError, match="process 42 on host far holds it now"):
            lease.require()
        taken = path.read_bytes()
        time.sleep(0.1)
        assert path.read_bytes() == taken
    assert path.read_bytes() == taken


@pytest.mark.slow
def test_of_many_that_want_a_stale_lease_one_gets_it(path: Path) -> None:
    for _ in range(20):
        path.write_text(json.dumps({"host": "far", "boot": "", "pid": 1}))
        holding: list[Lease] = []
        refused: list[LeaseError] = []
        start, end = threading.Barrier(5), threading.Barrier(5)

        def contend(
            start: Any = start,
            end: Any = end,
            holding: Any = holding,
            refused: Any = refused,
        ) -> None:
            lease = Lease(path, heartbeat_s=0.01, patience_s=0.03)
            start.wait()
            try:
                with lease:
                    holding.append(lease)
                    end.wait()
            except LeaseError as error:
                refused.append(error)
                end.wait()

        threads = [threading.Thread(target=contend) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        wait_until(lambda h=holding, r=refused: len(h) + len(r) == 4, "all have tried")
        valid = [lease for lease in holding if lease.is_held]
        end.wait()
        for thread in threads:
            thread.join()
        assert len(valid) == 1
        assert not path.exists()


def test_a_lease_moved_by_mistake_is_put_back(path: Path) -> None:
    with Lease(path) as lease:
        Lease(path)._remove({"host": "far", "pid": 1})
        assert lease.is_held
        assert os.listdir(path.parent) == [path.name]
        path.unlink()
        Lease(path)._remove({"host": "far", "pid": 1})
        assert os.listdir(path.parent) == []


def test_a_lease_that_ends_while_watched_is_free(path: Path) -> None:
    path.write_text(json.dumps({"host": "far", "boot": "", "pid": 1}))
    ending = threading.Timer(0.2, path.unlink)
    ending.start()
    with Lease(path, heartbeat_s=0.02, patience_s=600) as lease:
        assert lease.is_held
    ending.join()


def test_other_users_processes_count_as_living(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc hides the processes of other users."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(lease_module.os, "kill", refuse)
    holder = {"host": socket.gethostname(), "boot": lease_module._boot()}
    path.write_text(json.dumps({**holder, "pid": 2**22 + 1, "start": "1"}))
    with pytest.raises(LeaseError, match="is being run by"), Lease(path):
        pass


def test_a_directory_that_is_not_there_is_said(path: Path) -> None:
    missing = path.parent / "gone" / "driver.lease"
    with (
        pytest.raises(StoreError, match=r"driver\.lease cannot be written"),
        Lease(missing),
    ):
        pass


def test_readers_learn_whether_the_sweep_has_begun(path: Path) -> None:
    assert read_holder(path) is None
    with Lease(path) as lease:
        holder = read_holder(path)
        assert holder is not None
        assert (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
        assert holder.is_here
        assert not holder.has_begun
        lease.say_begun()
        assert lease.is_held
        begun = read_holder(path)
        assert begun is not None
        assert begun.has_begun
    assert read_holder(path) is None


def test_who_is_refused_learns_of_the_log(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    start_holder()
    path.with_name("driver.log").touch()
    message = rf"and `tail -f {path.parent}/driver\.log`, or stop it with"
    with pytest.raises(LeaseError, match=message), Lease(path):
        pass


def test_a_signal_reaches_who_holds_the_lease(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    holder = start_holder()
    assert signal_holder(path, signal.SIGTERM)
    assert holder.wait(10) == -signal.SIGTERM
    assert not signal_holder(path, signal.SIGTERM)


@pytest.mark.parametrize(
    "changes",
    [{"pid": "../self"}, {"pid": -1}, {"pid": None}, {"start": "1"}, {"host": "far"}],
)
def test_no_signal_is_sent_where_the_lease_was_changed(
    path: Path, start_holder: Callable[..., Any], changes: dict[str, Any]
) -> None:
    holder = start_holder(heartbeat_s=600)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    assert not signal_holder(path, signal.SIGTERM)
    assert holder.poll() is None


def test_no_signal_is_sent_to_who_does_not_hold_the_lease(
    path: Path, start_holder: Callable[..., Any]
) -> None:
    holder = start_holder(heartbeat_s=600)
    # Somebody wrote a lease that names a process of the user's.
    made_up = path.with_name("made-up.lease")
    made_up.write_bytes(path.read_bytes())
    assert not signal_holder(made_up, signal.SIGTERM)
    assert holder.poll() is None
