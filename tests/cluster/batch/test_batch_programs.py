"""Programs of a batch system that do not end, or leave something behind."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_programs import FakePrograms
from waiting import wait_until
from watching import is_running

from scalelab.cluster.batch import programs
from scalelab.cluster.batch.programs import ask
from scalelab.cluster.batch.queue import batch_client
from scalelab.errors import ClusterError


@pytest.fixture
def pid_file(fake_programs: FakePrograms, tmp_path: Path) -> Path:
    """Let two programs write their number and stand still."""
    file = tmp_path / "pid"
    script = f"echo $$ >{file}.new; /bin/mv {file}.new {file}; exec /bin/sleep 600"
    for name in ("squeue", "scancel"):
        fake_programs.does(name, script)
    return file


@pytest.mark.slow
def test_a_program_that_stands_still_is_ended(
    pid_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "CALL_TIMEOUT_S", 0.5)
    with pytest.raises(ClusterError, match=r"^squeue did not answer within 0\.5 s\.$"):
        asyncio.run(ask(["squeue"]))
    assert not pid_file.exists() or not is_running(int(pid_file.read_text()))


def asked() -> Coroutine[Any, Any, object]:
    return ask(["squeue"])


def cancelling() -> Coroutine[Any, Any, object]:
    return batch_client("slurm").job("vit-1", job_id="17").close()


@pytest.mark.parametrize("call", [asked, cancelling])
def test_a_program_is_ended_with_the_call_that_waits_for_it(
    pid_file: Path, call: Any
) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(call())
        await asyncio.to_thread(wait_until, pid_file.exists, "the program runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert not is_running(int(pid_file.read_text()))


def test_what_a_program_leaves_running_does_not_keep_its_answer(
    fake_programs: FakePrograms,
) -> None:
    fake_programs.does("squeue", "/bin/sleep 30 & echo 17")
    answer = asyncio.run(ask(["squeue"]))
    assert (answer.status, answer.output, answer.errors) == (0, "17\n", "")
