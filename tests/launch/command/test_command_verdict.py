from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scalelab.inputs.outcome import Outcome
from scalelab.launch.command.verdict import from_command_exit, last_traceback
from scalelab.launch.verdict import RankFailure


def explain(
    tmp_path: Path,
    said: str,
    status: int = 1,
    *,
    device_type: str = "cpu",
    oom_kills: int = 0,
) -> RankFailure:
    log = tmp_path / "rank-3.log"
    log.write_text(said)
    return from_command_exit(3, 5.0, status, device_type, log, oom_kills)


def said_by(code: str) -> str:
    """Return what Python prints of an uncaught exception."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    ).stderr


def raised(message: str) -> str:
    return said_by(f"raise RuntimeError({message!r})")


def test_exception_is_named_and_its_traceback_kept(tmp_path: Path) -> None:
    failure = explain(tmp_path, "epoch 1\n" + said_by("[][1]") + "bye\n")
    assert (failure.outcome, failure.rank) == (Outcome.FAILED, 3)
    assert failure.summary == "raised IndexError: list index out of range"
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert "epoch 1" not in failure.traceback
    result = failure.result(tmp_path / "rank-3.log")
    assert result.reason == "rank 3 raised IndexError: list index out of range"


def test_exceptions_it_was_raised_from_belong_to_it(tmp_path: Path) -> None:
    said = said_by("""
        try:
            1 / 0
        except ZeroDivisionError as error:
            try:
                raise ValueError("first") from error
            except ValueError:
                raise KeyError("second")
    """)
    failure = explain(tmp_path, raised("earlier, and caught") + "ok\n" + said)
    assert failure.summary == "raised KeyError: 'second'"
    assert "ZeroDivisionError: division by zero" in failure.traceback
    assert "ValueError: first" in failure.traceback
    assert "earlier" not in failure.traceback


def test_lines_of_other_ranks_in_between_are_no_exception(tmp_path: Path) -> None:
    said = "".join(f"{line}step 8 loss 0.1\n" for line in raised("no").splitlines(True))
    assert explain(tmp_path, said).summary == "raised RuntimeError: no"


def test_prefix_of_the_rank_is_no_part_of_a_traceback(tmp_path: Path) -> None:
    said = "".join(f"[rank1]: {line}\n" for line in raised("no").splitlines())
    failure = explain(tmp_path, said)
    assert failure.summary == "raised RuntimeError: no"
    assert "rank1" not in failure.traceback


def test_traceback_of_a_launcher_gives_way_to_that_of_its_rank(tmp_path: Path) -> None:
    launcher = raised("x").replace(
        "RuntimeError: x", "torch.distributed.ChildFailedError: \n====\nexitcode: 1"
    )
    failure = explain(tmp_path, raised("the cause") + launcher)
    assert failure.summary == "raised RuntimeError: the cause"
    failure = explain(tmp_path, launcher)
    assert failure.summary == (
        "raised torch.distributed.ChildFailedError: ==== exitcode: 1"
    )


def test_long_message_is_kept_in_part(tmp_path: Path) -> None:
    lines = "\\n".join(f"line {index}" for index in range(50))
    said = said_by(f"raise RuntimeError('{lines}')")
    traceback = explain(tmp_path, said).traceback
    assert traceback.endswith(
        "RuntimeError: line 0\nline 1\nline 2\nline 3\nline 4\nline 5\n"
    )


KERAS = """
raise ValueError('''Attempt to convert a value (PerReplica:{
  0: <tf.Tensor 'data_1:0' shape=(32, 10) dtype=float32>,
  1: <tf.Tensor 'data_2:0' shape=(32, 10) dtype=float32>
}) with an unsupported type (<class 'PerReplica'>) to a Tensor.''')
"""


def test_message_is_taken_until_it_is_said(tmp_path: Path) -> None:
    assert explain(tmp_path, said_by(KERAS)).summary == (
        "raised ValueError: Attempt to convert a value (PerReplica:{ 0: <tf.Tensor "
        "'data_1:0' shape=(32, 10) dtype=float32>, 1: <tf.Tensor 'data_2:0' "
        "shape=(32, 10) dtype=float32> }) with an unsupported type (<class "
        "'PerReplica'>) to a Tensor."
    )


@pytest.mark.parametrize(
    ("called", "place"),
    [
        ("check([])", "data.py:2"),
        ("import json; json.loads('{')", "train.py:2"),  # raised in Python's library
        ("import broken", "broken.py:1"),
    ],
)
def test_failure_names_the_last_place_in_the_users_code(
    tmp_path: Path, called: str, place: str
) -> None:
    (tmp_path / "data.py").write_text("def check(files):\n    assert files\n")
    (tmp_path / "broken.py").write_text("def of(:\n")
    (tmp_path / "train.py").write_text(f"from data import check\n{called}\n")
    said = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")], capture_output=True, text=True
    ).stderr
    log = tmp_path / "rank-3.log"
    log.write_text(said)
    for code in (str(tmp_path), None):
        failure = from_command_exit(3, 5.0, 1, "cpu", log, 0, code=code)
        assert re.match(rf"raised [\w.]+Error at {place}($|: )", failure.summary)


def test_exit_without_a_traceback_shows_the_last_lines(tmp_path: Path) -> None:
    failure = explain(tmp_path, "usage: train.py\nerror: no such argument\n", 2)
    assert (failure.summary, failure.traceback) == ("exited with status 2", None)
    result = failure.result(tmp_path / "rank-3.log")
    assert result.reason == (
        "rank 3 exited with status 2; last lines of rank-3.log: "
        "usage: train.py | error: no such argument"
    )


def test_silent_exit_is_a_failure_all_the_same(tmp_path: Path) -> None:
    failure = from_command_exit(0, 1.0, 7, "cpu", tmp_path / "none", 0)
    assert (failure.outcome, failure.summary) == (
        Outcome.FAILED,
        "exited with status 7",
    )


@pytest.mark.parametrize(
    ("message", "device_type", "outcome"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", "cuda", Outcome.OUT_OF_MEMORY),
        ("torch.OutOfMemoryError: x", "cuda", Outcome.OUT_OF_MEMORY),
        ("RESOURCE_EXHAUSTED: Out of memory", "cuda", Outcome.OUT_OF_MEMORY),
        ("DefaultCPUAllocator: can't allocate memory", "cpu", Outcome.OUT_OF_MEMORY),
        ("can't allocate memory", "cuda", Outcome.HOST_OUT_OF_MEMORY),
        ("[Errno 98] Address already in use", "cpu", Outcome.NODE_FAIL),
        ("EADDRINUSE, address in use", "cpu", Outcome.NODE_FAIL),
        ("the loss is not finite", "cuda", Outcome.FAILED),
    ],
)
def test_message_tells_what_went_wrong(
    tmp_path: Path, message: str, device_type: str, outcome: Outcome
) -> None:
    failure = explain(tmp_path, raised(message), device_type=device_type)
    assert failure.outcome is outcome
    assert failure.summary.startswith(f"raised RuntimeError: {message}")


def test_source_that_mentions_memory_is_no_evidence(tmp_path: Path) -> None:
    said = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    said += "    raise ValueError() # not a MemoryError\nValueError\n"
    assert explain(tmp_path, said).outcome is Outcome.FAILED


def test_traceback_begins_in_the_midst_of_another_ranks_line(tmp_path: Path) -> None:
    said = f"step 10 loss 0.1{raised('bad luck')}\nstep 11 loss 0.09\n"
    failure = explain(tmp_path, said)
    assert failure.summary.startswith("raised RuntimeError: bad luck")


def test_exception_without_a_message(tmp_path: Path) -> None:
    said = 'Traceback (most recent call last):\n  File "a.py", line 1\n'
    assert explain(tmp_path, said).summary == "raised an exception"


def test_lost_connection_is_an_echo(tmp_path: Path) -> None:
    failure = explain(tmp_path, raised("Connection closed by peer [127.0.0.1]:41"))
    assert failure.is_echo
    assert not explain(tmp_path, raised("the loss is not finite")).is_echo


def test_signals_mean_what_they_mean_for_ranks(tmp_path: Path) -> None:
    failure = explain(tmp_path, "", -signal.SIGKILL)
    assert (failure.outcome, failure.summary) == (
        Outcome.FAILED,
        "was killed by SIGKILL",
    )
    assert explain(tmp_path, "", -signal.SIGTERM).outcome is Outcome.PREEMPTED
    failure = explain(tmp_path, "", -signal.SIGKILL, oom_kills=1)
    assert failure.outcome is Outcome.HOST_OUT_OF_MEMORY
    failure = explain(tmp_path, said_by("[][1]"), -signal.SIGABRT)
    assert failure.summary == "was killed by SIGABRT"
    assert "IndexError" in failure.traceback


@pytest.mark.parametrize(
    ("status", "said"),
    [(137, ""), (1, "exitcode: -9\nSignal 9 (SIGKILL) received by PID 12\n")],
)
def test_kill_by_the_kernel_inside_a_command_is_known(
    tmp_path: Path, status: int, said: str
) -> None:
    failure = explain(tmp_path, said, status, oom_kills=1)
    assert failure.outcome is Outcome.HOST_OUT_OF_MEMORY
    assert failure.summary == (
        f"exited with status {status}; the kernel killed a process of it: the node ran "
        "out of memory"
    )
    assert explain(tmp_path, said, status).outcome is Outcome.FAILED


def test_log_of_garbage_is_survived(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"\xff\xfe\x00" * 100_000)
    failure = from_command_exit(0, 1.0, 1, "cpu", log, 0)
    assert failure.summary == "exited with status 1"


def test_text_without_a_traceback_has_none() -> None:
    assert last_traceback("all is well\n") is None
