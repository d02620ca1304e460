"""The programs of a batch system, and jobs that submit scripts with them."""

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from scalelab.cluster.batch.queue import CALL_TIMEOUT_S
from scalelab.errors import BusyError, ClusterError
from scalelab.kinds.registry import imported


@dataclass(frozen=True, slots=True)
class Answer:
    """Output and exit status of a program."""

    status: int
    output: str
    errors: str


async def ask(
    argv: Sequence[str],
    variables: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Answer:
    """Run a program of the batch system, with further environment variables.

    It is over when the program has ended, even if a process that it started in the
    background keeps its output open. Where the caller gives up first, it is killed.
    """
    limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
    with (
        open(os.memfd_create("output"), "w+b") as output,
        open(os.memfd_create("errors"), "w+b") as errors,
    ):
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(variables or {})},
            )
        except OSError as error:
            raise ClusterError(
                f"{argv[0]} cannot be run here: {error.strerror}. Sweep from a machine "
                "where it can."
            ) from error
        try:
            status = await asyncio.wait_for(process.wait(), limit_s)
        except TimeoutError:
            raise BusyError(f"{argv[0]} did not answer within {limit_s:g} s.") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return Answer(status, _text(output), _text(errors).strip())


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def answered(
    argv: Sequence[str],
    variables: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Answer:
    """Return the answer of a program, also if it failed or cannot be run."""
    try:
        return asyncio.run(ask(argv, variables, timeout_s))
    except ClusterError as error:
        return Answer(1, "", str(error))


def said_by(argv: Sequence[str]) -> str:
    """Return the standard output of a program."""
    answer = asyncio.run(ask(argv))
    if answer.status:
        prefix = re.compile(rf"({re.escape(argv[0])}: )?((error|fatal): )?")
        lines = [prefix.sub("", line, count=1) for line in answer.errors.splitlines()]
        message = "; ".join(filter(None, lines)) or f"it ended with {answer.status}"
        raise ClusterError(
            f"{argv[0]} has no cluster here ({message.rstrip('.')}). Run this on a "
            "login node of the cluster, or again once it answers there."
        )
    return answer.output


def job_class(path: str, *, busy: re.Pattern[str], **attributes: str) -> Any:
    """Return a class of dask-jobqueue's jobs that submit the script they are given.

    Only the main thread can load it.
    """
    # dask-jobqueue replaces what Ctrl-C does when it is imported.
    before = signal.getsignal(signal.SIGINT)
    try:
        base = imported(path)
    finally:
        with suppress(ValueError):  # not in the main thread, where it changed nothing
            signal.signal(signal.SIGINT, before)
    return type("ScriptedJob", (_ScriptedJob, base), {**attributes, "busy": busy})


class _ScriptedJob:
    """A base before a class of dask-jobqueue, whose own scripts ask for no GPU."""

    busy: ClassVar[re.Pattern[str]]

    def __init__(self, name: str, script: str, job_id: str | None) -> None:
        # Required, and meant for the script that is not used.
        unused: dict[str, Any] = {"scheduler": "", "cores": 1, "memory": "1GB"}
        self._script = script  # first: PBSJob reads it while it is made
        super().__init__(name=name, job_name=name, **unused)  # type: ignore[call-arg]
        self.job_id = job_id

    def job_script(self) -> str:
        return self._script

    @classmethod
    async def _call(cls, cmd: Sequence[str], **_: Any) -> str:
        """Run a program; dask-jobqueue leaves one behind that takes too long."""
        answer = await ask(cmd)
        if not answer.status:
            return answer.output
        if cls.busy.search(answer.errors):
            raise BusyError(" ".join(answer.errors.split()))
        raise RuntimeError(answer.errors or f"{cmd[0]} ended with {answer.status}")
