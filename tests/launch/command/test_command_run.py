"""Commands as real processes, small ones without torch."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_specs import (
    GLOBAL_BATCH,
    REGEX,
    TICKER,
    command_spec,
    rendezvous_of,
    write_program,
)
from full_files import make_full
from waiting import DEADLINE_S, wait_until
from watching import is_running

from scalelab.experiment.program import MetricsSource
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.timing import Limits
from scalelab.launch.verdict import merge
from scalelab.records.attempt import AttemptResult, AttemptSpec, read_result
from scalelab.records.observations import row
from scalelab.records.streams import read_lines

# Writes its pid, and those of processes it starts, into the folder for its output.
PID = """
import os, pathlib, subprocess, sys, time
OUT = pathlib.Path(os.environ["SCALELAB_TRIAL_DIR"])
def leave(name, pid):
    (OUT / f"{name}.tmp").write_text(str(pid))
    (OUT / f"{name}.tmp").rename(OUT / f"{name}.pid")
leave("rank-" + os.environ.get("RANK", "0"), os.getpid())
"""


def pid_of(spec: AttemptSpec, name: str) -> int:
    file = Path(spec.directory, "output", f"{name}.pid")
    wait_until(file.exists, f"{file.name} is there")
    return int(file.read_text())


def run(agent: NodeAgent, spec: AttemptSpec) -> AttemptResult:
    result = agent.run(spec, 0, None)
    assert read_result(spec.files) == result
    return result


def test_node_of_nothing_but_commands_runs_them(tmp_path: Path) -> None:
    with NodeAgent("node-0", "cpu", (), entry=None) as agent:
        spec = command_spec(tmp_path, TICKER, launcher="none", steps=3)
        assert run(agent, spec).outcome is Outcome.COMPLETED


def test_command_is_stopped_after_the_measured_steps(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = command_spec(tmp_path, TICKER, warmup_steps=3, steps=20)
    agent.device_name = "a device"
    result = run(agent, spec)
    agent.device_name = None
    assert result.outcome is Outcome.COMPLETED, result
    measured = result.measurements
    assert measured["device_name"] == "a device"
    assert 20 <= measured["num_steps"] < 100
    assert measured["step_time_lo_s"] < measured["step_time_s"]
    assert measured["step_time_s"] < measured["step_time_hi_s"]
    assert measured["throughput_samples_per_s"] == pytest.approx(
        GLOBAL_BATCH / measured["step_time_s"]
    )
    assert measured["num_samples"] >= 23 * GLOBAL_BATCH
    assert 0 < measured["start_up_s"] < measured["allocated_gpu_s"]
    assert row(spec, result)["num_steps"] == measured["num_steps"]


def test_stream_holds_the_steps_of_rank_0(agent: NodeAgent, tmp_path: Path) -> None:
    spec = command_spec(tmp_path, TICKER, steps=20)
    run(agent, spec)
    rows = read_lines(spec.files.stream)
    assert [each["step"] for each in rows] == list(range(1, len(rows) + 1))
    assert {each["event"] for each in rows} == {"step"}
    assert all(each["samples"] == each["step"] * GLOBAL_BATCH for each in rows)
    assert all(each["loss"] == 1 / each["step"] for each in rows)
    times = [each["t"] for each in rows if "t" in each]
    assert times == sorted(times)
    assert len(times) > 20


def test_output_is_read_by_regular_expressions(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = """
        import sys, time
        print("loading \\u00fc ...")
        for step in range(5, 10_000, 5):
            time.sleep(0.002)
            stream = sys.stderr if step % 2 else sys.stdout
            print(f"\\repoch 0: step {step} | samples {step * 8} | loss nan |"
                  f" at {100 + step / 10:.1f} s", end="\\r", file=stream)
    """
    result = run(agent, command_spec(tmp_path, program, metrics=REGEX, steps=40))
    assert result.outcome is Outcome.COMPLETED, result
    # The program's own clock counts: a tenth of a second for each step.
    assert result.measurements["step_time_s"] == pytest.approx(0.1)
    assert result.measurements["num_steps"] % 5 == 0


def test_every_rank_may_write_where_only_rank_0_is_read(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = run(agent, command_spec(tmp_path, TICKER, ranks=2))
    assert result.outcome is Outcome.COMPLETED, result
    assert (tmp_path / "attempt" / "rank-1.log").read_text() == ""


def test_garbage_between_reports_is_survived(agent: NodeAgent, tmp_path: Path) -> None:
    program = """
        import os, time
        file = open(os.environ["SCALELAB_METRICS"], "wb", buffering=0)
        for step in range(1, 10_000):
            file.write(b"\\xff\\x00 garbage\\n" + b"x" * 3_000_000 * (step == 5))
            file.write(b'\\n{"step": %d, ' % step)
            time.sleep(0.002)
            file.write(b'"loss": NaN, "note": "\\xc3\\xbc"}\\n[]\\n\\n')
    """
    result = run(agent, command_spec(tmp_path, program))
    assert result.outcome is Outcome.COMPLETED, result


def test_unicode_and_spaces_in_paths(agent: NodeAgent, tmp_path: Path) -> None:
    code = tmp_path / "c ö d e"
    write_program(code / "sub dir", TICKER, "träin 1.py")
    spec = command_spec(
        tmp_path / "räum 'x\"", code=code, command="python 'sub dir/träin 1.py'"
    )
    assert run(agent, spec).outcome is Outcome.COMPLETED


def test_metrics_file_in_a_folder_made_later(agent: NodeAgent, tmp_path: Path) -> None:
    program = """
        import json, os, sys, time
        os.makedirs(sys.argv[1])
        with open(sys.argv[1] + "/log.jsonl", "x", buffering=1) as file:
            for step in range(1, 10_000):
                time.sleep(0.002)
                file.write(json.dumps({"step": step}) + "\\n")
    """
    spec = command_spec(
        tmp_path,
        program,
        command="python program.py {trial_dir}/v/1",
        metrics=MetricsSource(jsonl="{trial_dir}/v/1/log.jsonl"),
    )
    assert run(agent, spec).outcome is Outcome.COMPLETED


# Signals 32 and 33 belong to the C library; no program can reset them.
_RESERVED_SIGNALS = 0b11 << 31


def test_no_signal_is_ignored_from_the_start(agent: NodeAgent, tmp_path: Path) -> None:
    # Not by Python, which ignores some by itself.
    spec = command_spec(tmp_path, command="grep SigIgn /proc/self/status")
    run(agent, spec)
    ignored = int(spec.files.log(0).read_text().split()[1], 16)
    assert ignored & ~_RESERVED_SIGNALS == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_wrong_batch_arithmetic_is_refused(
    agent: NodeAgent, tmp_path: Path, ranks: int
) -> None:
    program = TICKER.replace("step * 8", "step * 4")
    result = run(agent, command_spec(tmp_path, program, ranks=ranks))
    assert result.outcome is Outcome.REFUSED
    assert result.reason.startswith("the command reported ")
    assert "global_batch_size=8" in result.reason
    assert result.traceback.rpartition("\n")[2].startswith(
        "scalelab.errors.SpecError: the command reported "
    )


def test_two_writers_are_refused(agent: NodeAgent, tmp_path: Path) -> None:
    program = TICKER.replace(
        "metrics.write(", "print(file=metrics, end='', *["
    ).replace('"\\n")', '"\\n"] * 2, sep="")')
    result = run(agent, command_spec(tmp_path, program))
    assert result.outcome is Outcome.REFUSED, result
    assert "was reported twice" in result.reason


def test_command_line_that_cannot_be_run_is_refused(
    agent: NodeAgent, tmp_path: Path
) -> None:
    result = run(agent, command_spec(tmp_path, command="no-such-program"))
    assert result.outcome is Outcome.REFUSED
    assert result.traceback.startswith("scalelab.errors.SpecError: command: 'no-such")


def test_code_that_is_not_there_is_a_failure(agent: NodeAgent, tmp_path: Path) -> None:
    spec = command_spec(tmp_path, TICKER, code=tmp_path / "gone")
    (tmp_path / "gone" / "program.py").unlink()
    (tmp_path / "gone").rmdir()
    result = run(agent, spec)
    assert result.outcome is Outcome.FAILED
    assert "FileNotFoundError" in result.reason


@pytest.mark.parametrize("culprit", [0, 1])
def test_killed_rank_ends_the_attempt(
    start: Callable[..., Any], tmp_path: Path, culprit: int
) -> None:
    spec = command_spec(tmp_path, PID + "time.sleep(600)", ranks=2)
    attempt = start(spec)
    pids = [pid_of(spec, f"rank-{rank}") for rank in range(2)]
    os.kill(pids[culprit], signal.SIGKILL)
    result = attempt.result(DEADLINE_S)
    assert (result.outcome, result.rank) == (Outcome.FAILED, culprit)
    assert result.reason == f"rank {culprit} was killed by SIGKILL"
    assert not any(map(is_running, pids))


def test_traceback_of_the_rank_that_raises_is_recorded(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = """
        import os, time
        if os.environ["RANK"] == "1":
            print("about to fail")
            raise ValueError("the loss is not finite")
        time.sleep(600)
    """
    result = run(agent, command_spec(tmp_path, program, ranks=2))
    assert (result.outcome, result.rank) == (Outcome.FAILED, 1)
    assert result.reason == (
        "rank 1 raised ValueError at program.py:5: the loss is not finite"
    )
    assert result.traceback.startswith("Traceback (most recent call last):")
    assert result.traceback.endswith("ValueError: the loss is not finite\n")
    assert result.log == "rank-1.log"


def test_exit_status_is_reported_with_the_last_lines(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = "import sys; print('usage: ...'); sys.exit('no such option')"
    result = run(agent, command_spec(tmp_path, program))
    assert result.outcome is Outcome.FAILED
    assert result.reason == (
        "rank 0 exited with status 1; last lines of rank-0.log: "
        "usage: ... | no such option"
    )


def test_out_of_memory_is_an_outcome(agent: NodeAgent, tmp_path: Path) -> None:
    result = run(agent, command_spec(tmp_path, "raise MemoryError('no more')"))
    assert result.outcome is Outcome.OUT_OF_MEMORY


def test_port_in_use_is_tried_again(agent: NodeAgent, tmp_path: Path) -> None:
    program = """
        import socket
        first = socket.create_server(("127.0.0.1", 0))
        socket.create_server(first.getsockname())
    """
    result = run(agent, command_spec(tmp_path, program))
    assert result.outcome is Outcome.NODE_FAIL
    assert result.outcome.is_retried
    assert result.reason.endswith("another program on the node uses that port")


@pytest.mark.slow
def test_hanging_command_is_stalled(agent: Any, tmp_path: Path) -> None:
    program = TICKER.replace(
        "    metrics.write", "    time.sleep(600 * (step > 10))\n        metrics.write"
    )
    spec = command_spec(tmp_path, program, ranks=2, steps=1000, stall_floor_s=3.0)
    result = run(agent, spec)
    assert result.outcome is Outcome.STALLED, result
    assert result.reason.startswith("no progress for ")
    assert "rank 0 at step 10, rank 1 at step 10" in result.reason


@pytest.mark.slow
def test_command_that_never_reports_is_stalled_and_told_why(
    agent: Any, tmp_path: Path
) -> None:
    spec = command_spec(
        tmp_path,
        "import time; print('hello'); time.sleep(600)",
        start_up_timeout_s=1.0,
    )
    result = run(agent, spec)
    assert result.outcome is Outcome.STALLED
    assert "(the limit is measure.start_up_timeout=1 s to the first step)" in (
        result.reason
    )
    assert result.reason.endswith(
        "The program reported no step: it has not written output/metrics.jsonl; and no "
        "optimizer of PyTorch was seen to step. Check what the program writes "
        "against 'metrics' in the experiment; last lines of rank-0.log: hello"
    )


@pytest.mark.slow
def test_output_is_a_sign_of_life_but_not_for_ever(agent: Any, tmp_path: Path) -> None:
    program = """
        import time
        while True:
            print("still loading")
            time.sleep(0.02)
    """
    spec = command_spec(tmp_path, program, metrics=REGEX, start_up_timeout_s=0.4)
    result = run(agent, spec)
    assert result.outcome is Outcome.STALLED
    # Silence counts after 0.4 s; it did so only after 1.2 s of output.
    assert result.measurements["allocated_gpu_s"] > 1.2
    assert "none was matched by metrics.regex" in result.reason


@pytest.mark.parametrize(
    ("kind", "stall_floor_s", "limits"),
    [
        (TrialKind.THROUGHPUT, None, (600.0, 60.0)),
        (TrialKind.CONVERGENCE, None, (600.0, 300.0)),
        (TrialKind.THROUGHPUT, 30.0, (600.0, 30.0)),
        (TrialKind.CONVERGENCE, 900.0, (900.0, 900.0)),
    ],
)
def test_silence_may_last_longer_unless_the_user_said_how_long(
    tmp_path: Path,
    kind: TrialKind,
    stall_floor_s: float | None,
    limits: tuple[float, float],
) -> None:
    spec = command_spec(tmp_path, kind=kind, stall_floor_s=stall_floor_s, timeout_s=9)
    found = Limits.of(spec)
    assert (found.start_up_s, found.stall_floor_s) == limits
    assert (found.timeout_s, found.grace_s) == (9, 2.0)
    # Other nodes do not hear of the steps.
    assert Limits.of(spec, 1).start_up_s > 100_000


@pytest.mark.slow
def test_timeout_says_that_nothing_was_reported(agent: Any, tmp_path: Path) -> None:
    spec = command_spec(tmp_path, "import time; time.sleep(600)", timeout_s=0.5)
    result = run(agent, spec)
    assert result.outcome is Outcome.TIMED_OUT
    assert "did not end within timeout_s=0.5 s. The program reported no step" in (
        result.reason
    )
    spec = command_spec(tmp_path / "2", TICKER, timeout_s=1, steps=10**6)
    assert run(agent, spec).reason == "did not end within timeout_s=1 s"


def test_early_exit_says_how_many_steps_there_were(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = TICKER.replace("100_000", "6")
    result = run(agent, command_spec(tmp_path, program))
    assert (result.outcome, result.log) == (Outcome.FAILED, "rank-0.log")
    assert "ended by itself after 5 steps" in result.reason
    result = run(agent, command_spec(tmp_path / "2", "print('done')"))
    assert result.outcome is Outcome.FAILED
    assert result.reason.startswith("The program reported no step: it has not written")
    assert result.reason.endswith("last lines of rank-0.log: done")


def test_exit_after_enough_steps_is_completed(agent: NodeAgent, tmp_path: Path) -> None:
    program = TICKER.replace("100_000", "40")
    result = run(agent, command_spec(tmp_path, program, ranks=2, steps=500))
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["num_samples"] == 39 * GLOBAL_BATCH


def test_other_ranks_may_end_before_rank_0(agent: NodeAgent, tmp_path: Path) -> None:
    ends = "held = meet()\nif os.environ['RANK'] == '1':\n    raise SystemExit\n"
    program = TICKER.replace("held = meet()\n", ends)
    result = run(agent, command_spec(tmp_path, program, ranks=2))
    assert result.outcome is Outcome.COMPLETED, result


@pytest.mark.slow
def test_command_that_ignores_sigterm_is_ended(agent: Any, tmp_path: Path) -> None:
    program = "import signal; signal.signal(15, signal.SIG_IGN)\n" + PID + TICKER
    spec = command_spec(tmp_path, program)
    assert run(agent, spec).outcome is Outcome.COMPLETED
    assert not is_running(pid_of(spec, "rank-0"))


FAMILY = (
    PID
    + """
sleep = [sys.executable, "-c", "import signal, time; signal.signal(15, 1); "
         "time.sleep(600)"]
leave("child", subprocess.Popen(sleep).pid)
leave("session", subprocess.Popen(sleep, start_new_session=True).pid)
inner = f"import subprocess; print(subprocess.Popen({sleep!r}, " \\
    "start_new_session=True, stdout=subprocess.DEVNULL).pid)"
leave("daemon", int(subprocess.check_output([sys.executable, "-c", inner])))
"""
    + TICKER
)
MEMBERS = ("rank-0", "child", "session", "daemon")


@pytest.mark.slow
def test_nothing_a_command_started_is_left(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    lasting = command_spec(tmp_path / "1", FAMILY, steps=10**6)
    attempt = start(lasting)
    of_lasting = [pid_of(lasting, name) for name in MEMBERS]
    spec = command_spec(tmp_path / "2", FAMILY)
    assert run(agent, spec).outcome is Outcome.COMPLETED
    assert not any(is_running(pid_of(spec, name)) for name in MEMBERS)
    # What the other attempt has started goes on.
    assert all(map(is_running, of_lasting))
    agent.cancel(lasting.attempt_id, "enough")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert not any(map(is_running, of_lasting))


@pytest.mark.parametrize("member", ["rank-0", "supervisor"])
def test_nothing_is_left_when_a_process_is_killed(
    start: Callable[..., Any], tmp_path: Path, member: str
) -> None:
    spec = command_spec(tmp_path, FAMILY, steps=10**6)
    attempt = start(spec)
    pids = [pid_of(spec, name) for name in MEMBERS]
    victim = pids[0] if member == "rank-0" else parent_of(pids[0])
    os.kill(victim, signal.SIGKILL)
    result = attempt.result(DEADLINE_S)
    assert result.reason == "rank 0 was killed by SIGKILL"
    wait_until(lambda: not any(map(is_running, pids)), "all have ended")


@pytest.mark.slow
def test_nothing_is_left_when_the_rank_server_is_killed(
    start: Any, tmp_path: Path
) -> None:
    with NodeAgent("node-0", "cpu", ()) as agent:
        spec = command_spec(tmp_path, FAMILY, steps=10**6)
        attempt = start(spec, on=agent)
        pids = [pid_of(spec, name) for name in MEMBERS]
        os.kill(parent_of(parent_of(pids[0])), signal.SIGKILL)
        assert attempt.result(DEADLINE_S).outcome is Outcome.NODE_FAIL
        wait_until(lambda: not any(map(is_running, pids)), "all have ended")


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_convergence_trial_stops_at_its_target(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = """
        import time
        for step in range(1, 10_000):
            time.sleep(0.002)
            print("step", step, "samples", step * 8, "loss", 1 / step)
            if step % 10 == 0:
                print("val_acc", step / 100)
    """
    spec = command_spec(
        tmp_path,
        program,
        metrics=REGEX,
        kind=TrialKind.CONVERGENCE,
        target="val_acc >= 0.3",
        max_samples=1000,
    )
    result = run(agent, spec)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["samples_to_target"] == 30 * GLOBAL_BATCH
    assert result.measurements["final_metric"] >= 0.3
    assert result.measurements["time_to_target_s"] > 0.05
    assert "step_time_s" not in result.measurements
    evaluations = [
        each for each in read_lines(spec.files.stream) if each["event"] == "evaluation"
    ]
    assert [each["val_acc"] for each in evaluations[:3]] == [0.1, 0.2, 0.3]
    spec = command_spec(
        tmp_path / "2",
        program,
        metrics=REGEX,
        kind=TrialKind.CONVERGENCE,
        target="val_acc >= 0.9",
        max_samples=200,
    )
    assert run(agent, spec).outcome is Outcome.TARGET_NOT_REACHED


def test_full_disk_under_the_stream_is_no_fault_of_the_trial(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = command_spec(tmp_path, TICKER)
    make_full(spec.files.stream)
    result = run(agent, spec)
    assert result.outcome is Outcome.NODE_FAIL
    assert "File too large" in result.reason


@pytest.mark.slow
def test_command_on_two_nodes_is_ended_by_the_first(
    agent: Any, start: Any, tmp_path: Path
) -> None:
    spec = command_spec(tmp_path, PID + TICKER, ranks=(1, 1))
    with NodeAgent("node-1", "cpu", ()) as other:
        meeting = rendezvous_of(agent, other, spec.attempt_id)
        words = [start(spec, 0, meeting), start(spec, 1, meeting, on=other)]
        first = words[0].result(DEADLINE_S)
        assert first.outcome is Outcome.COMPLETED, first
        # The driver now ends the attempt on the other node.
        assert is_running(pid_of(spec, "rank-1"))
        other.cancel(spec.attempt_id, "node 0 has measured")
        second = words[1].result(DEADLINE_S)
        agent.close_rendezvous(spec.attempt_id)
    assert second.outcome is Outcome.CANCELLED
    assert not is_running(pid_of(spec, "rank-1"))
    merged = merge([first, second], first_decides=True)
    assert merged.outcome is Outcome.COMPLETED
    assert len(merged.measurements["hosts"]) == 2


def test_other_node_of_a_command_waits_for_all_its_ranks(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = command_spec(tmp_path, "print('done')", ranks=(1, 2))
    meeting = agent.open_rendezvous(spec.attempt_id)
    result = agent.run(spec, 1, meeting)
    agent.close_rendezvous(spec.attempt_id)
    assert result.outcome is Outcome.COMPLETED


@pytest.mark.slow
def test_metrics_are_read_while_the_program_runs(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    spec = command_spec(tmp_path, TICKER, steps=10**6)
    attempt = start(spec)
    wait_until(lambda: len(read_lines(spec.files.stream)) > 10, "steps are recorded")
    assert not attempt.done()
    agent.cancel(spec.attempt_id, "enough")
    assert attempt.result(DEADLINE_S).outcome is Outcome.CANCELLED
    assert json.loads(spec.files.result.read_text())["outcome"] == "cancelled"
