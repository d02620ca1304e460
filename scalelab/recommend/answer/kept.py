"""Answers kept on disk, so that a question asked again is answered at once.

A sweep, its report and ``recommend`` with another rendering ask the same question of
the same run. An answer holds for the records and the code it was made from; it is kept
as JSON and only ever read as such.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date as Date
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from scalelab.experiment.job import Job
from scalelab.inputs.document import Scalar
from scalelab.inputs.links import Link
from scalelab.inputs.plain_files import adapter_of, parse_json
from scalelab.kinds.resources import RESOURCES
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.money.prices import Quote
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.objective import Constraints
from scalelab.records.cache import own_file, write_cache
from scalelab.site.spot import AskedSpot

_MOST = 20  # answers of one run
_CODE = (
    *("inputs", "kinds", "site", "experiment", "plan"),
    *("records", "laws", "recommend"),
)
_SUFFIXES = (".py", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question to a run, identified by its ``repr``."""

    job: Job | None = None
    limits: Constraints
    gpus: tuple[int, ...] = ()
    select: Mapping[str, Scalar] = field(default_factory=dict)
    law: str = "scalelab"
    learn_from: tuple[str, ...] = ()
    batches: AskedBatch = field(default_factory=AskedBatch)
    runs: int | None = None  # of a campaign; the limits are those of all of them
    pool: int | None = None
    between_nodes: Link | None = None
    accept_unmeasured: bool = False
    history: str = ""  # folder of runs to learn from; empty: none
    quotes: tuple[Quote, ...] = ()  # prices other than the site's own
    spot: AskedSpot | None = None  # what is asked of interruptible nodes
    walltime_s: float | None = None  # the longest time of a job that is asked
    checkpoint_s: float | None = None
    power: tuple[tuple[str, float], ...] = ()  # W of a device, by what it is called
    pue: float | None = None
    carbon_g_per_kwh: float | None = None
    today: Date | None = None  # where one of them has a date
    # These change no answer; what they add to it is not kept
    asks_what_if: bool = field(default=False, repr=False)
    asks_scaling: bool = field(default=False, repr=False)

    def of_one_run(self) -> Self:
        """Return what is asked of one run: the limits of a campaign are of them all."""
        if self.runs is None:
            return self
        return replace(self, limits=replace(self.limits, limits={}))


class KeptAnswers:
    """The latest answers about one state of a run."""

    def __init__(self, path: Path, source: Mapping[str, Any]) -> None:
        self._path = path
        self._source = {**source, "code": _code()}

    def find(self, question: str) -> Recommendation | None:
        """Return the answer to a question; None if it is not kept."""
        with suppress(KeyError, ValueError):
            kept = self._read()[_key(question)]
            answer: Recommendation = adapter_of(Recommendation).validate_python(kept)
            return answer
        return None

    def keep(self, question: str, answer: Recommendation) -> None:
        """Keep an answer beside the latest others."""
        # what other limits would choose is large, and of use to a page alone
        answers = {
            **self._read(),
            _key(question): asdict(replace(answer, what_if={}, scaling=())),
        }
        latest = dict([*answers.items()][-_MOST:])
        kept = {"source": self._source, "answers": latest}
        content = json.dumps(kept, default=lambda scalar: scalar.item())  # of NumPy
        write_cache(self._path, content.encode())

    def _read(self) -> dict[str, Any]:
        try:
            with own_file(self._path) as file:
                kept = parse_json(file.read(), float, is_compared=True)
            return dict(kept["answers"]) if kept["source"] == self._source else {}
        except (OSError, ValueError, LookupError, TypeError):
            return {}


def _key(question: str) -> str:
    return sha256(question.encode()).hexdigest()


def _code() -> str:
    known = (_files_of(_CODE), sorted(RESOURCES.outside.items()))
    return sha256(repr(known).encode()).hexdigest()


@cache
def _files_of(rooms: tuple[str, ...]) -> list[tuple[str, int, int]]:
    folders = [Path(__file__).parents[2] / room for room in rooms]
    return [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(path for folder in folders for path in folder.rglob("*"))
        if path.suffix in _SUFFIXES
    ]
