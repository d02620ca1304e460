"""The ledger of a run: which attempts began and how they ended, in order.

Only the driver writes it, one line at a time. It is an index: the attempt directories
hold the facts, and a ledger that is lost or damaged is rebuilt from them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalelab.plan.source import Observation
from scalelab.records.attempt_io import (
    append_all,
    decode_json,
    encode_json,
    reading,
    storing,
    write_atomically,
)
from scalelab.records.observations import check_row, check_types
from scalelab.records.plain_files import read_file

AttemptKey = tuple[str, int]
"""Trial id and attempt number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerContent:
    """The content of a ledger."""

    begun: Mapping[AttemptKey, str] = field(default_factory=dict)
    ended: Mapping[AttemptKey, Observation] = field(default_factory=dict)
    is_whole: bool = True
    is_torn: bool = False


class Ledger:
    """Appends to and reads ``ledger.jsonl``; the file is opened at the first append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def append_begin(self, key: AttemptKey) -> None:
        """Note that an attempt begins now."""
        self._append(_begin_line(key, datetime.now(UTC).isoformat()))

    def append_end(self, observation: Observation) -> None:
        """Note how an attempt ended."""
        self._append(_end_line(observation))

    def _append(self, line: bytes) -> None:
        with storing(self.path):
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
                self._descriptor = os.open(self.path, flags, 0o644)
            append_all(self._descriptor, line)

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def replace(
        self, begun: Mapping[AttemptKey, str], ended: Mapping[AttemptKey, Observation]
    ) -> None:
        """Write the whole ledger anew."""
        self.close()
        lines = [_begin_line(key, at) for key, at in begun.items()]
        lines += [_end_line(observation) for observation in ended.values()]
        write_atomically(self.path, b"".join(lines))

    def read(self) -> LedgerContent:
        """Read the ledger; half a line at its end is left out."""
        try:
            with reading(self.path):
                content = read_file(self.path)
        except FileNotFoundError:
            return LedgerContent(is_whole=False)
        *lines, rest = content.split(b"\n")
        begun: dict[AttemptKey, str] = {}
        ended: dict[AttemptKey, Observation] = {}
        is_whole = True
        for line in lines:
            try:
                event = decode_json(line)
                if event["event"] == "begin":
                    begun[_key(event)] = event["at"]
                else:
                    observation = check_types(check_row(event["row"]))
                    ended[_key(observation)] = observation
            except (KeyError, TypeError, ValueError):
                is_whole = False
        return LedgerContent(
            begun=begun, ended=ended, is_whole=is_whole, is_torn=bool(rest)
        )


def _key(values: Mapping[str, Any]) -> AttemptKey:
    trial_id, number = values["trial_id"], values["attempt"]
    # They name a directory; nothing else may.
    if type(number) is not int or not re.fullmatch(r"\w{1,99}", trial_id, re.ASCII):
        raise ValueError(f"trial_id={trial_id!r}, attempt={number!r}")
    return trial_id, number


def _begin_line(key: AttemptKey, at: str) -> bytes:
    trial_id, number = key
    event = {"event": "begin", "trial_id": trial_id, "attempt": number, "at": at}
    return encode_json(event) + b"\n"


def _end_line(observation: Observation) -> bytes:
    present = {name: value for name, value in observation.items() if value is not None}
    return encode_json({"event": "end", "row": present}) + b"\n"
