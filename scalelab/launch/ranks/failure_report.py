"""How a process that raised an error tells the node's agent of it."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from contextlib import suppress

from scalelab.errors import SpecError
from scalelab.kinds.trainers import trainer_of
from scalelab.launch.protocol import ProcessRequest, send
from scalelab.launch.verdict import OutcomeOf, from_exception
from scalelab.records.attempt import AttemptSpec


def report_failure(
    process: ProcessRequest,
    channel: socket.socket,
    error: BaseException,
    spec: AttemptSpec | None = None,
) -> None:
    """Write an error to the log of the process and send it to the node's agent.

    ``spec`` is the attempt of a rank; None: the process is none.
    """
    failed_at_s = time.monotonic()
    # The first frame is that of ScaleLab's own caller.
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    # A full disk may refuse the log: the agent must hear of the failure all the same.
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()
    code = process.search_path[0] if process.search_path else None
    failure = from_exception(
        process.rank,
        failed_at_s,
        error,
        spec.device_type if spec else "cpu",
        code,
        outcome_of=_outcome_of(spec),
    )
    with suppress(OSError):
        send(channel, {"kind": "failed", "failure": failure.to_json()})


def _outcome_of(spec: AttemptSpec | None) -> OutcomeOf:
    """Return what the trainer of an attempt says that errors stand for."""
    if spec is not None:
        with suppress(SpecError):  # it cannot be asked; the error itself is reported
            return trainer_of(spec.program.name)[0].outcome_of
    return lambda error: None
