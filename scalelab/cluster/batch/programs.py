"""Run the programs of a batch system and return their output."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from scalelab.errors import BusyError, ClusterError

CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Output and exit status of a program."""

    status: int
    output: str
    errors: str


async def ask(argv: Sequence[str]) -> Answer:
    """Run a program of the batch system.

    It is over when the program has ended, even if a process that it started in the
    background keeps its output open. Where the caller gives up first, it is killed.
    """
    with _in_memory("output") as output, _in_memory("errors") as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=errors
            )
        except OSError as error:
            raise ClusterError(
                f"{argv[0]} cannot be run here: {error.strerror}. Sweep from a machine "
                "where it can."
            ) from error
        status = await _status(process, argv[0])
        return Answer(status, _text(output), _text(errors).strip())


async def _status(process: asyncio.subprocess.Process, name: str) -> int:
    """Return the exit status of a program, which has ended in any case."""
    try:
        return await asyncio.wait_for(process.wait(), CALL_TIMEOUT_S)
    except TimeoutError:
        raise BusyError(f"{name} did not answer within {CALL_TIMEOUT_S:g} s.") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _in_memory(name: str) -> BinaryIO:
    return open(os.memfd_create(name), "w+b")


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def answered(argv: Sequence[str]) -> Answer:
    """Return the answer of a program, also if it failed or cannot be run."""
    try:
        return asyncio.run(ask(argv))
    except ClusterError as error:
        return Answer(1, "", str(error))


def said_by(argv: Sequence[str]) -> str:
    """Return the standard output of a program."""
    answer = asyncio.run(ask(argv))
    if answer.status:
        prefix = re.compile(rf"({re.escape(argv[0])}: )?((error|fatal): )?")
        lines = [prefix.sub("", line, count=1) for line in answer.errors.splitlines()]
        said = "; ".join(filter(None, lines)) or f"it ended with {answer.status}"
        raise ClusterError(
            f"{argv[0]} has no cluster here ({said.rstrip('.')}). Run this on a login "
            "node of the cluster, or again once it answers there."
        )
    return answer.output
