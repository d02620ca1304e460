from __future__ import annotations

import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from full_files import make_full
from waiting import DEADLINE_S
from watching import ENTRY, STAND_IN, core_ids, is_running, read_pid

from scalelab.errors import DiskFullError, LaunchError
from scalelab.inputs.outcome import Outcome
from scalelab.launch import gang_agent
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import send
from scalelab.launch.timing import Limits
from scalelab.launch.verdict import merge
from scalelab.records.attempt import AttemptSpec, read_result
from scalelab.records.observations import row


def describe(agent: NodeAgent, spec: AttemptSpec) -> dict[str, str]:
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    return dict(
        line.split("=", 1)
        for line in result.measurements["versions"].splitlines()
        if "=" in line
    )


def test_result_of_rank_0_is_returned_and_recorded(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("meet")
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["num_steps"] == 50
    assert read_result(spec.files) == result
    assert "rank 1 has met the others" in spec.files.log(1).read_text()


def test_node_adds_times_hosts_and_device_seconds(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("meet")
    before_s = time.monotonic()
    measured = agent.run(spec, 0, None).measurements
    took_s = time.monotonic() - before_s
    started, ended = (
        datetime.fromisoformat(measured[name]) for name in ("started_at", "ended_at")
    )
    assert started < ended
    assert 0 < measured["start_up_s"] < measured["allocated_gpu_s"] / 2 < took_s
    assert len(measured["hosts"]) == 1
    assert row(spec, read_result(spec.files))["hosts"] == measured["hosts"]


@pytest.mark.slow
def test_many_attempts_in_a_row_leave_clean_exits(agent: Any, make_spec: Any) -> None:
    outcomes = {agent.run(make_spec("meet"), 0, None).outcome for _ in range(30)}
    assert outcomes == {Outcome.COMPLETED}


def test_rank_process_is_set_up(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("describe", ranks=1, threads_per_rank=3)
    facts = describe(agent, spec)
    assert facts["threads"] == "3"
    assert facts["omp"] == "3"
    assert facts["affinity"] == f"[{core_ids(1)[0]}]"
    assert facts["leads_group"] == "True"
    assert facts["death_signal"] == str(int(signal.SIGKILL))
    assert facts["oom_score"] == "500"
    assert facts["session"] == facts["parent"]
    assert facts["cuda_visible"] == ""
    assert facts["gloo_interface"] == "lo"
    assert "local_world_size=1" in facts["identity"]
    # Three standard streams, channel, request, progress board (and its mapping) and the
    # directory being listed: nothing of the server or of other attempts.
    assert len(facts["descriptors"].split(",")) <= 8


def test_code_directory_comes_first_on_the_search_path(
    agent: NodeAgent, make_spec: Callable[..., Any], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    facts = describe(agent, make_spec("describe", ranks=1, code=str(code)))
    assert facts["code"].startswith(f"['{code}'")


def test_core_that_is_not_permitted_is_recorded(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("describe", ranks=1, device_ids=("1000",))
    result = agent.run(spec, 0, None)
    assert result.measurements["validity"] == ["unexpected_placement"]
    allowed = sorted(os.sched_getaffinity(0))
    assert f"affinity={allowed}" in result.measurements["versions"]


def test_emulated_ranks_are_not_pinned(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("describe", ranks=1, workload="emulated", device_ids=("1000",))
    assert "validity" not in agent.run(spec, 0, None).measurements


@pytest.mark.slow
def test_cuda_devices_are_made_visible(make_spec: Any) -> None:
    with NodeAgent("gpu-0", "cuda", (), entry=ENTRY, search_path=(str(STAND_IN),)) as a:
        spec = make_spec(
            "describe", ranks=1, device_type="cuda", device_ids=("GPU-5ab",)
        )
        facts = describe(a, spec)
    assert facts["cuda_visible"] == "GPU-5ab"
    assert facts["affinity"] == str(sorted(os.sched_getaffinity(0)))


def test_other_device_type_is_refused(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("meet", device_type="cuda"), 0, None)
    assert result.outcome is Outcome.REFUSED
    assert result.reason == (
        "device_type=cuda, but node node-0 offers cpu. "
        "Set device_type in the site profile."
    )


@pytest.mark.parametrize("culprit", [0, 1])
def test_error_of_the_first_failing_rank_is_reported(
    agent: NodeAgent, make_spec: Callable[..., Any], culprit: int
) -> None:
    spec = make_spec("raise_error", culprit=culprit)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.FAILED
    assert result.rank == culprit
    assert re.fullmatch(
        rf"rank {culprit} raised ValueError at stand_in\.py:\d+: the loss .* finite",
        result.reason,
    )
    assert result.traceback.startswith("Traceback")
    assert 'raise ValueError("the loss is not finite")' in result.traceback
    assert "rank_process" not in result.traceback
    assert result.log == f"rank-{culprit}.log"
    assert result.traceback in spec.files.log(culprit).read_text()
    assert read_result(spec.files) == result


def test_cause_is_preferred_to_an_earlier_connection_error(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("raise_late_under_echo", culprit=1), 0, None)
    assert (result.rank, result.outcome) == (1, Outcome.FAILED)
    assert result.reason.startswith("rank 1 raised ValueError at stand_in.py:")
    assert result.reason.endswith(": the cause")


def test_killed_rank_ends_the_attempt(
    start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("train")
    attempt = start(spec)
    pids = [read_pid(spec, f"rank-{rank}") for rank in range(2)]
    os.kill(pids[1], signal.SIGKILL)
    result = attempt.result(DEADLINE_S)
    assert result.outcome is Outcome.FAILED
    assert (result.rank, result.traceback) == (1, "SIGKILL")
    assert result.reason == "rank 1 was killed by SIGKILL"
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("status", [0, 3])
def test_exit_without_a_result_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any], status: int
) -> None:
    result = agent.run(make_spec("exit_silently", status=status), 0, None)
    assert result.outcome is Outcome.FAILED
    assert result.rank == 1
    assert result.reason == (
        f"rank 1 exited with status {status} before it returned a result; "
        "last lines of rank-1.log: about to leave"
    )


def test_death_by_a_bug_shows_the_stack(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("die_by_signal", ranks=1, signal=int(signal.SIGSEGV))
    result = agent.run(spec, 0, None)
    assert (result.outcome, result.traceback) == (Outcome.FAILED, "SIGSEGV")
    assert result.reason.startswith("rank 0 was killed by SIGSEGV; last lines")
    assert "in die_by_signal" in spec.files.log(0).read_text()


def test_foreign_sigterm_is_a_preemption(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("die_by_signal", ranks=1, signal=int(signal.SIGTERM))
    assert agent.run(spec, 0, None).outcome is Outcome.PREEMPTED


def test_no_result_from_rank_0_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("return_nothing", ranks=1), 0, None)
    assert (result.outcome, result.log) == (Outcome.FAILED, "rank-0.log")
    assert result.reason == "rank 0 returned no result"


def test_result_that_is_no_json_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("return_tensor", ranks=1), 0, None)
    assert result.outcome is Outcome.FAILED
    assert re.search("TypeError .*Tensor is not JSON serializable", result.reason)


def test_large_result_arrives_whole(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("return_much", ranks=1), 0, None)
    assert len(result.measurements["versions"]) == 300_000


@pytest.mark.slow
def test_no_rank_starts_where_its_entry_cannot_be_imported(make_spec: Any) -> None:
    agent = NodeAgent("node-0", "cpu", (), entry="no_such_module:act")
    said = r"The rank server did not start .*No module named 'no_such_module'"
    with pytest.raises(LaunchError, match=said):
        agent.start()
    agent.close()


def test_memory_limit_is_out_of_memory_and_the_next_attempt_is_well(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("allocate_too_much"), 0, None)
    assert (result.outcome, result.rank) == (Outcome.OUT_OF_MEMORY, 1)
    assert "can't allocate memory" in result.traceback
    assert agent.run(make_spec("meet"), 0, None).outcome is Outcome.COMPLETED


def test_abort_for_want_of_memory_is_out_of_memory(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    result = agent.run(make_spec("abort_without_memory", ranks=1), 0, None)
    assert (result.outcome, result.traceback) == (Outcome.OUT_OF_MEMORY, "SIGABRT")


@pytest.mark.slow
def test_timeout_ends_the_attempt(agent: Any, make_spec: Any) -> None:
    spec = make_spec("train", timeout_s=1)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.TIMED_OUT
    assert result.reason == "did not end within timeout_s=1 s"
    assert not is_running(read_pid(spec, "rank-0"))


def test_a_rank_that_holds_the_interpreter_is_waited_for(
    agent: NodeAgent, start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    busy = make_spec("hold_the_interpreter", ranks=1, held_s=2.0)
    attempt = start(busy)
    # The node starts and ends others meanwhile.
    assert agent.run(make_spec("meet", ranks=1), 0, None).outcome is Outcome.COMPLETED
    assert attempt.result(DEADLINE_S).outcome is Outcome.COMPLETED


def test_a_rank_that_holds_the_interpreter_for_good_is_ended(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("hold_the_interpreter", ranks=1, held_s=600.0, stall_floor_s=1.0)
    assert agent.run(spec, 0, None).outcome is Outcome.STALLED


def test_cancel_leaves_no_process(
    agent: NodeAgent, start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("load")
    attempt = start(spec)
    names = ("rank-0", "rank-1", "loader-0", "loader-1")
    pids = [read_pid(spec, name) for name in names]
    agent.cancel(spec.attempt_id, "the sweep was stopped")
    result = attempt.result(DEADLINE_S)
    assert result.outcome is Outcome.CANCELLED
    assert result.reason == "the sweep was stopped"
    assert not any(map(is_running, pids))
    assert read_result(spec.files) == result


@pytest.mark.slow
def test_cancel_ends_ranks_that_ignore_sigterm(
    agent: Any, start: Any, make_spec: Any
) -> None:
    spec = make_spec("ignore_sigterm")
    attempt = start(spec)
    pids = [read_pid(spec, f"rank-{rank}") for rank in range(2)]
    agent.cancel(spec.attempt_id, "enough")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert not any(map(is_running, pids))


def test_cancel_before_the_launch_counts(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("train")
    agent.cancel(spec.attempt_id, "too early")
    result = agent.run(spec, 0, None)
    assert (result.outcome, result.reason) == (Outcome.CANCELLED, "too early")
    assert not Path(spec.directory, "rank-0.log").exists()


def test_what_was_cancelled_is_forgotten(
    agent: NodeAgent,
    make_spec: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_agent, "_MAX_AWAITED", 3)
    agent._cancelled.clear()
    spec = make_spec("meet", ranks=1)
    agent.cancel(spec.attempt_id, "too early")
    agent.run(spec, 0, None)
    assert agent._cancelled == {}
    for number in range(9):
        agent.cancel(f"ended-{number}", "too late")
    assert list(agent._cancelled) == ["ended-6", "ended-7", "ended-8"]


@pytest.mark.slow
def test_processes_a_rank_leaves_behind_are_ended(make_spec: Any) -> None:
    with NodeAgent("n", "cpu", (), entry=ENTRY, search_path=(str(STAND_IN),)) as agent:
        spec = make_spec("leave_processes_behind", ranks=1)
        assert agent.run(spec, 0, None).outcome is Outcome.COMPLETED
        assert not is_running(read_pid(spec, "child"))
        assert not is_running(read_pid(spec, "daemon"))


def test_attempts_run_side_by_side(
    agent: NodeAgent, start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    lasting = make_spec("train", ranks=1)
    attempt = start(lasting)
    pid = read_pid(lasting, "rank-0")
    others = [start(make_spec("meet", ranks=1)) for _ in range(3)]
    failing = start(make_spec("raise_error", ranks=1, culprit=0))
    assert {other.result(DEADLINE_S).outcome for other in others} == {Outcome.COMPLETED}
    assert failing.result(DEADLINE_S).outcome is Outcome.FAILED
    assert is_running(pid)
    agent.cancel(lasting.attempt_id, "done")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED


def test_attempt_runs_once_at_a_time(
    agent: NodeAgent, start: Callable[..., Any], make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("train", ranks=1)
    start(spec)
    read_pid(spec, "rank-0")
    with pytest.raises(
        LaunchError,
        match=f"attempt {spec.attempt_id} is already running on node node-0. "
        "Launch it again under the next number.",
    ):
        agent.run(spec, 0, None)


@pytest.mark.slow
def test_two_nodes_on_one_machine(agent: Any, start: Any, make_spec: Any) -> None:
    with NodeAgent(
        "node-1", "cpu", (), entry=ENTRY, search_path=(str(STAND_IN),)
    ) as other:
        spec = make_spec("meet", ranks=(1, 1))
        meeting = agent.open_rendezvous(spec.attempt_id)
        assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", meeting)
        words = [start(spec, 0, meeting), start(spec, 1, meeting, on=other)]
        results = [word.result(DEADLINE_S) for word in words]
        agent.close_rendezvous(spec.attempt_id)
        assert [each.outcome for each in results] == [Outcome.COMPLETED] * 2
        assert len(merge(results).measurements["hosts"]) == 2
        assert read_result(spec.files) == results[0]

        failing = make_spec("raise_error", ranks=(1, 1), culprit=1)
        meeting = agent.open_rendezvous(failing.attempt_id)
        words = [start(failing, 0, meeting), start(failing, 1, meeting, on=other)]
        results = [word.result(DEADLINE_S) for word in words]
        agent.close_rendezvous(failing.attempt_id)
    verdict = merge(results)
    assert results[0].outcome is Outcome.FAILED
    assert (verdict.rank, verdict.outcome) == (1, Outcome.FAILED)
    assert verdict.reason.startswith("rank 1 raised ValueError at stand_in.py:")


@pytest.mark.timeout(60)  # torch itself waits for five minutes
def test_ranks_that_have_not_met_do_not_wait_for_a_store_that_has_ended(
    make_spec: Any,
) -> None:
    options: Any = {"entry": ENTRY, "search_path": (str(STAND_IN),)}
    before = set(psutil.Process().children(recursive=True))
    with NodeAgent("node-0", "cpu", (), **options) as agent:
        spec = make_spec("meet", ranks=(1, 1))
        meeting = agent.open_rendezvous(spec.attempt_id)
        store = max(
            set(psutil.Process().children(recursive=True)) - before,
            key=psutil.Process.create_time,
        )
        store.kill()
        result = agent.run(spec, 0, meeting)
        agent.close_rendezvous(spec.attempt_id)
    assert result.outcome is Outcome.NODE_FAIL
    assert result.reason == "the rendezvous store ended before the first step"


def test_rendezvous_on_a_foreign_address_is_an_error() -> None:
    agent = NodeAgent("n", "cpu", (), entry=ENTRY, address="192.0.2.1")
    with pytest.raises(LaunchError, match=r"^address=192\.0\.2\.1 is no address of "):
        agent.open_rendezvous("a-1")
    agent.close_rendezvous("a-1")
    agent.close()


@pytest.mark.slow
def test_store_ends_where_no_further_port_is_found() -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    with NodeAgent("n", "cpu", ()) as agent:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, usual[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                agent.open_rendezvous("a-1", num_ports=600)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, usual)
        assert not agent._stores._channels


@pytest.mark.parametrize(
    ("word", "error"),
    [
        (
            {"kind": "failed", "failure": {"summary": "raised OSError: no port"}},
            "no port",
        ),
        (None, "the rank server has ended"),
    ],
)
def test_store_that_is_not_served_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    word: dict[str, dict[str, str] | str] | None,
    error: str,
) -> None:
    class Server:
        def launch(
            self, request: pytest.FixtureRequest, board: ProgressBoard
        ) -> socket:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with far:
                send(far, {"kind": "started", "rank": 0, "pid": 1}, [far.fileno()])
                if word is not None:
                    send(far, word)
            return near

    agent = NodeAgent("n", "cpu", ())
    monkeypatch.setattr(agent._servers, "current", Server)
    with pytest.raises(
        LaunchError,
        match=rf"^node n cannot serve a rendezvous on 127\.0\.0\.1: .*{error}\. "
        r"Use an address of that host which the other nodes can reach\.$",
    ):
        agent.open_rendezvous("a-1")
    agent.close()


@pytest.mark.slow
def test_close_ends_running_attempts_and_stores(start: Any, make_spec: Any) -> None:
    agent = NodeAgent("n", "cpu", (), entry=ENTRY, search_path=(str(STAND_IN),))
    agent.start()
    agent.open_rendezvous("another-1")
    spec = make_spec("train")
    attempt = start(spec, on=agent)
    pid = read_pid(spec, "rank-1")
    agent.close()
    assert attempt.result(DEADLINE_S).reason == "node n was closed"
    assert not is_running(pid)


def test_directory_that_cannot_be_written_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    spec = make_spec("meet", directory=tmp_path / "file" / "attempt-1")
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.FAILED
    assert re.search("cannot be written: Not a directory", result.reason)


def test_full_disk_under_the_log_is_no_fault_of_the_trial(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("fill_the_log", ranks=1)
    make_full(spec.files.log(0))
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.NODE_FAIL
    assert result.outcome.is_retried
    assert result.reason.startswith("rank 0 raised OSError at ")
    assert "File too large" in result.reason


def test_log_that_cannot_be_opened_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("meet", ranks=1)
    spec.files.log(0).mkdir(parents=True)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("rank 0 raised IsADirectoryError")


def test_result_that_cannot_be_recorded_is_a_failure(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("remove_directory", ranks=1)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith(f"{spec.files.result} cannot be written")


def test_no_space_for_the_result_leaves_the_attempt_without_one(
    agent: NodeAgent, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec("meet")
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, unlimited[1]))
    try:
        with pytest.raises(DiskFullError, match=r"too large\. Free space .* resumes"):
            agent.run(spec, 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert not spec.files.result.exists()
    assert agent.run(make_spec("meet"), 0, None).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("stall_floor_s", "start_up_timeout_s", "limits"),
    [
        (None, None, (600.0, 30.0)),
        (6.0, None, (600.0, 6.0)),
        (900.0, None, (900.0, 900.0)),
        (900.0, 60.0, (60.0, 900.0)),
    ],
)
def test_the_first_step_has_a_limit_of_its_own(
    make_spec: Callable[..., Any],
    stall_floor_s: float | None,
    start_up_timeout_s: float | None,
    limits: tuple[float, float],
) -> None:
    silences = {
        "stall_floor_s": stall_floor_s,
        "start_up_timeout_s": start_up_timeout_s,
    }
    found = Limits.of(make_spec("meet", **silences))
    assert (found.start_up_s, found.stall_floor_s) == limits
