"""A pipeline in virtual time: declared times of stages, exact arithmetic, no process.

It tells how large the bubble of a schedule must be, before any device is asked for.
Nothing of it is a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, get_args

from scalelab.errors import SpecError
from scalelab.kinds.strategies import Schedule

SCHEDULES: tuple[str, ...] = get_args(Schedule)


class _Pass(NamedTuple):
    """A pass of one micro-batch through a stage."""

    is_forward: bool
    micro_batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualPipeline:
    """The declared times of the stages of a pipeline; messages take no time.

    Examples
    --------
    >>> even = VirtualPipeline(forward_s=(1, 1), backward_s=(2, 2))
    >>> even.bubble_share(4, "gpipe") == even.bubble_share(4, "1f1b") == (2 - 1) / 5
    True
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.forward_s or len(self.forward_s) != len(self.backward_s):
            raise SpecError(
                f"forward_s has {len(self.forward_s)} times and backward_s "
                f"{len(self.backward_s)}. Give both one for each stage."
            )

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.forward_s)

    def step_time_s(self, num_micro_batches: int, schedule: str) -> float:
        """Return the seconds from the first forward pass to the last backward pass."""
        orders = [
            list(self._order(stage, num_micro_batches, schedule))
            for stage in range(self.num_stages)
        ]
        ended_s: dict[tuple[int, _Pass], float] = {}
        free_s = [0.0] * self.num_stages
        while any(orders):
            for stage, order in enumerate(orders):
                while order and self._is_ready(stage, order[0], ended_s):
                    turn = order.pop(0)
                    begin_s = max(free_s[stage], self._input_s(stage, turn, ended_s))
                    free_s[stage] = begin_s + self._time_s(stage, turn)
                    ended_s[stage, turn] = free_s[stage]
        return max(free_s)

    def bubble_share(self, num_micro_batches: int, schedule: str) -> float:
        """Return the share of a step in which stages compute nothing, in [0, 1).

        With ``p`` equal stages and ``m`` micro-batches it is ``(p - 1) / (m + p - 1)``
        in both schedules.

        References
        ----------
        Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
        Pipeline Parallelism", section 2.3.
        """
        offered_s = self.num_stages * self.step_time_s(num_micro_batches, schedule)
        computed_s = num_micro_batches * (sum(self.forward_s) + sum(self.backward_s))
        return (offered_s - computed_s) / offered_s

    def _order(
        self, stage: int, num_micro_batches: int, schedule: str
    ) -> Iterator[_Pass]:
        """Yield the passes of a stage in the order in which it computes them."""
        if schedule not in SCHEDULES:
            raise SpecError(
                f"schedule={schedule!r} is no schedule of pipelines. Valid: "
                f"{', '.join(SCHEDULES)}."
            )
        ahead = num_micro_batches
        if schedule == "1f1b":
            ahead = self.num_stages - stage
        if ahead > num_micro_batches or num_micro_batches < 1:
            raise SpecError(
                f"schedule={schedule} needs at least {self.num_stages} micro-batches "
                f"for {self.num_stages} stages, not {num_micro_batches}. Use more."
            )
        for micro_batch in range(num_micro_batches + ahead):
            if micro_batch >= ahead:
                yield _Pass(False, micro_batch - ahead)
            if micro_batch < num_micro_batches:
                yield _Pass(True, micro_batch)

    def _needs(self, stage: int, turn: _Pass) -> tuple[int, _Pass] | None:
        """Return the pass whose result a pass waits for; None: it waits for none."""
        if turn.is_forward:
            return (stage - 1, turn) if stage else None
        if stage + 1 < self.num_stages:
            return (stage + 1, turn)
        return (stage, _Pass(True, turn.micro_batch))

    def _is_ready(
        self, stage: int, turn: _Pass, ended_s: dict[tuple[int, _Pass], float]
    ) -> bool:
        needed = self._needs(stage, turn)
        return needed is None or needed in ended_s

    def _input_s(
        self, stage: int, turn: _Pass, ended_s: dict[tuple[int, _Pass], float]
    ) -> float:
        needed = self._needs(stage, turn)
        return 0.0 if needed is None else ended_s[needed]

    def _time_s(self, stage: int, turn: _Pass) -> float:
        return (self.forward_s if turn.is_forward else self.backward_s)[stage]
