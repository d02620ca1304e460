"""How a process that raised an error tells the node's agent of it."""

from __future__ import annotations

import socket
import sys
import time
import traceback
from contextlib import suppress

from scalelab.launch.protocol import ProcessRequest, send
from scalelab.launch.verdict import from_exception


def report_failure(
    process: ProcessRequest,
    channel: socket.socket,
    error: BaseException,
    device_type: str = "cpu",
) -> None:
    """Write an error to the log of the process and send it to the node's agent."""
    failed_at_s = time.monotonic()
    # The first frame is that of ScaleLab's own caller.
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    # A full disk may refuse the log: the agent must hear of the failure all the same.
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()
    code = process.search_path[0] if process.search_path else None
    failure = from_exception(process.rank, failed_at_s, error, device_type, code)
    with suppress(OSError):
        send(channel, {"kind": "failed", "failure": failure.to_json()})
