"""Reads the streams of the probe; their format stands in ``inside/scalelab_probe``."""

import json
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scalelab.inputs.plain_files import opened

_RECORD = struct.Struct("<BBBBIIIffd")
_NO_GRADIENTS, _NO_SAMPLES, _FACT = 1, 2, 4

# What batches are for: the index of their loader, and whether gradients were enabled.
Source = tuple[int, bool]
Note = Mapping[str, Any]


class Draws(NamedTuple):
    """Batches that a process drew from a loader between two of its steps."""

    source: Source
    batches: float
    samples: float | None  # None: not known
    waited_s: float


class ProbedStep(NamedTuple):
    """A step of an optimizer, with what was drawn by the process until then."""

    number: int
    at_s: float  # by the monotonic clock of its host
    num_draws: int  # of the process's draws, those before the step
    forward_s: float  # from the last batches to the backward passes
    num_skipped: int  # steps that a scaler of gradients skipped before


class ProbedProcess:
    """What the probe has seen in one process of a command.

    ``steps`` are those of each optimizer, as ``notes`` are: what was written before
    steps 1, 2, 4, 8 and so on, by their number. ``loaders`` have a note each, and
    ``entries`` are the notes of what entered the model in some steps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.node = path.parent  # where all processes of a node write
        self._num_read = 0
        self.steps: dict[int, list[ProbedStep]] = defaultdict(list)
        self.notes: dict[int, dict[int, Note]] = defaultdict(dict)
        self.loaders: dict[int, Note] = {}
        self.entries: list[Note] = []
        self.draws: list[Draws] = []
        self.since_1970_s: float | None = None  # at zero of the monotonic clock

    @property
    def note(self) -> Note:
        """What was written last of the process among the ranks."""
        notes = {
            at: note for notes in self.notes.values() for at, note in notes.items()
        }
        return notes[max(notes)] if notes else {"rank": None}

    def draws_between(
        self, before: ProbedStep | None, step: ProbedStep
    ) -> Sequence[Draws]:
        """Return what was drawn after one step and until another one."""
        return self.draws[before.num_draws if before else 0 : step.num_draws]

    def draws_of_steps(
        self, optimizer: int, sources: Collection[Source], after_step: int
    ) -> list[Draws]:
        """Return the means of what was drawn for each step, after a first few."""
        found = []
        later = [step for step in self.steps[optimizer] if step.number >= after_step]
        for before, step in pairwise(later):
            drawn = [
                draw
                for draw in self.draws_between(before, step)
                if draw.source in sources
            ]
            samples = [draw.samples for draw in drawn if draw.samples is not None]
            number = step.number - before.number
            is_known = len(samples) == len(drawn)
            found.append(
                Draws(
                    source=drawn[0].source if drawn else (0, True),
                    batches=sum(draw.batches for draw in drawn) / number,
                    samples=sum(samples) / number if is_known else None,
                    waited_s=sum(draw.waited_s for draw in drawn) / number,
                )
            )

        return found

    def read(self) -> None:
        """Take in the whole records that were written since the last call."""
        below = self._path.parents[2]  # an attempt, or the answer of a job
        with suppress(OSError, ValueError), opened(self._path, below=below) as file:
            file.seek(self._num_read)
            content, at = file.read(), 0
            while (end := self._take(content, at)) <= len(content):
                self._num_read += end - at
                at = end

    def _take(self, content: bytes, at: int) -> int:
        """Take in a record if it is whole; return where the next one begins."""
        end: int = at + _RECORD.size
        if end > len(content):
            return end

        record: tuple[Any, ...] = _RECORD.unpack_from(content, at)
        optimizer, loader, flags, skipped, number, batches, samples, *seconds = record
        waited_s, forward_s, at_s = seconds
        if flags & _FACT:
            end += number
            if end <= len(content):
                self._take_note(json.loads(content[end - number : end]), at_s)
            return end

        if batches:
            source = loader, not flags & _NO_GRADIENTS
            known = None if flags & _NO_SAMPLES else samples
            self.draws.append(Draws(source, batches, known, waited_s))

        if number:
            step = ProbedStep(number, at_s, len(self.draws), forward_s, skipped)
            self.steps[optimizer].append(step)

        return end

    def _take_note(self, note: Note, at_s: float) -> None:
        if "before_step" in note:
            self.notes[note["optimizer"]][note["before_step"]] = note
            if "clock_s" in note:  # not in streams of earlier versions
                self.since_1970_s = note["clock_s"] - at_s
        elif "loader" in note:
            self.loaders[note["loader"]] = note
        elif "entered" in note:
            self.entries.append(note)


class ProbedProcesses(dict[Path, ProbedProcess]):
    """All processes of an attempt in which an optimizer has stepped, by their file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def read(self) -> None:
        """Take in what was written since the last call, in all of them."""
        for path in self._folder.glob("*/*.probe"):
            self.setdefault(path, ProbedProcess(path)).read()
