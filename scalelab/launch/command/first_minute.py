"""What is seen while no step of a command comes, said once while it still runs."""

import math
import time
from collections.abc import Callable, Sequence

import yaml

from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.plain_files import log_tail
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.sight import num_at_store
from scalelab.launch.rendezvous import Meeting
from scalelab.reading.logs.match import metrics_for
from scalelab.records.attempt_io import write_atomically

MANY_LINES = 100
PATIENCE_S = 60.0
_LOOK_EVERY_S = 5.0
_READ_BYTES = 1 << 18


class FirstMinute:
    """Looks at a command while no step comes, and writes a notice once.

    The notice is written after many lines, a minute after the first line that might be
    of a step, or a minute after the start where no rank has come to the store. The
    attempt goes on.
    """

    def __init__(self, attempt: CommandAttempt, meeting: Meeting) -> None:
        self._attempt, self._meeting = attempt, meeting
        self._began_s = time.monotonic()
        self._next_look_s = self._began_s + _LOOK_EVERY_S
        self._readable_s = math.inf
        self._is_told = False
        self.no_rank_came = ""  # in a sentence; empty where one did, or may not

    def look(self, pids: Sequence[int], nothing_seen: Callable[[], str]) -> None:
        """Look again if it is time to; ``nothing_seen`` says that no step was."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_EVERY_S
        if now_s - self._began_s >= PATIENCE_S:
            self.no_rank_came = self._without_ranks(pids)
        if self._is_told:
            return

        files = self._attempt.spec.files
        lines = log_tail(files.log(0), num_bytes=_READ_BYTES).encode()
        if metrics := metrics_for(lines):
            self._readable_s = min(self._readable_s, now_s)

        has_waited = now_s - self._readable_s >= PATIENCE_S
        has_waited |= lines.count(b"\n") >= MANY_LINES
        if not (has_waited or self.no_rank_came):
            return

        self._is_told = True
        found = [f"No step after {duration(round(now_s - self._began_s))}"]
        found.append(self.no_rank_came or nothing_seen())
        if metrics:
            # As a line of YAML, which can be copied.
            line = yaml.safe_dump(metrics, default_flow_style=True, width=_READ_BYTES)
            found.append(f"These lines are read by {line.strip()[1:-1]}")
        text = ". ".join(found).encode()
        write_atomically(files.notice, text, below=files.run, durable=False)

    def _without_ranks(self, pids: Sequence[int]) -> str:
        num_ranks = self._attempt.spec.trial.world_size
        is_awaited = self._attempt.launcher.serves_store and num_ranks > 1
        if not is_awaited or num_at_store(self._meeting, pids):
            return ""
        return (
            f"None of {counted(num_ranks, 'rank')} is connected with the store at "
            "MASTER_ADDR:MASTER_PORT, where they meet. If the script sets these "
            "variables, or TORCHELASTIC_USE_AGENT_STORE, let it leave them as it finds "
            "them; or it has not called init_process_group yet"
        )
