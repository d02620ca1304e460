"""The programs of a batch system: run, and their answers read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scalelab.errors import ClusterError

CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said, and its status."""

    status: int
    output: str
    errors: str


async def ask(argv: Sequence[str]) -> Answer:
    """Run a program of the batch system.

    Raises
    ------
    ClusterError
        If it is not there or does not end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ClusterError(
            f"{argv[0]} cannot be run here: {error.strerror}. Sweep from a machine "
            "where it can."
        ) from error
    try:
        output, errors = await asyncio.wait_for(process.communicate(), CALL_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ClusterError(
            f"{argv[0]} did not answer within {CALL_TIMEOUT_S:g} s."
        ) from None
    assert process.returncode is not None
    return Answer(process.returncode, output.decode(), errors.decode().strip())


def answered(argv: Sequence[str]) -> Answer:
    """Return what a program says; that it cannot be run is an answer too."""
    try:
        return asyncio.run(ask(argv))
    except ClusterError as error:
        return Answer(1, "", str(error))


def said_by(argv: Sequence[str]) -> str:
    """Return what a program prints.

    Raises
    ------
    ClusterError
        If it cannot be run, does not end, or fails.
    """
    answer = asyncio.run(ask(argv))
    if answer.status:
        words = " ".join(answer.errors.split()) or f"it ended with {answer.status}"
        said = words.removeprefix(f"{argv[0]}: ").rstrip(".")
        raise ClusterError(
            f"{argv[0]}: {said}. Run this where {argv[0]} has an answer: on a login "
            "node of the cluster."
        )
    return answer.output
