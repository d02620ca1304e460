"""The budget of a sweep: device time, money or time, and what is left of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.inputs.money import parse_money
from scalelab.inputs.numerals import duration, number
from scalelab.inputs.problems import Option
from scalelab.inputs.quantities import parse_duration, parse_gpu_hours

# Seconds that trials may still take once they are asked to end
ENDING_S = 3.0

Rate = Callable[[str | None, int, int], float]
"""What a second costs, from the node group, the devices and the nodes of a trial."""


class Spent(StrEnum):
    """What a budget limits."""

    DEVICE_TIME = "device_time"  # in device-seconds
    MONEY = "money"
    TIME = "time"  # that the sweep runs, in seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The most that a sweep may take."""

    amount: float
    spent: Spent
    currency: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a budget: ``10gpu-h`` (a bare number, too), ``20usd`` or ``2h``."""
        readers: dict[Spent, Callable[[str], float]] = {
            Spent.DEVICE_TIME: lambda written: parse_gpu_hours(written) * 3600,
            Spent.TIME: parse_duration,
            Spent.MONEY: parse_money,
        }
        for spent, read in readers.items():
            try:
                amount = read(text)
            except SpecError:
                continue
            currency = getattr(amount, "currency", "")
            return cls(amount=float(amount), spent=spent, currency=currency)

        raise SpecError(
            f"{text[:60]!r} is no budget of a sweep. Write device time, such as "
            "'10gpu-h', money, such as '20usd', or the time that it may run, such as "
            "'2h'.",
            code="not_a_budget",
        )

    def in_words(self, device_hour_word: str) -> str:
        """Return it as users write it, e.g. ``10 GPU-h``."""
        if self.spent is Spent.TIME:
            return duration(self.amount)
        if self.spent is Spent.MONEY:
            return f"{self.amount:g} {self.currency}".rstrip()
        return f"{self.amount / 3600:g} {device_hour_word}"

    def used_in_words(self, used: float) -> str:
        """Return how much of it was used, in its own unit."""
        if self.spent is Spent.TIME:
            return duration(used)
        return number(used / 3600 if self.spent is Spent.DEVICE_TIME else used)


def devices_alone(group: str | None, num_devices: int, num_nodes: int) -> float:
    """Return the device-seconds of a second."""
    return float(num_devices)


@dataclass(slots=True)
class _Running:
    rate: float
    started_s: float
    expected: float  # cost


class Account:
    """What a sweep may spend, what it has spent, and what its running trials will.

    A trial may start if what it is expected to cost fits into what is left beside the
    others. Where trials take longer than expected they are ended in time.

    Parameters
    ----------
    budget
        None: there is none, and everything may start.
    rate
        What a second of a trial costs, in the unit of the budget.
    used
        What earlier sweeps of the run have used.
    expected_s
        How many seconds a trial is expected to take; None: not known.
    ending_s
        Seconds that a trial may still take once it is asked to end.
    clock
        Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        rate: Rate = devices_alone,
        used: float = 0.0,
        expected_s: Callable[[Trial], float | None] = lambda trial: None,
        ending_s: float = ENDING_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self._rate = rate
        self._used = used
        self._expected_s = expected_s
        self._ending_s = ending_s
        self._clock = clock
        self._began_s = clock()
        self._running: dict[str, _Running] = {}

    @property
    def used(self) -> float:
        """What ended trials have used; of time, what has passed."""
        is_time = self.budget is not None and self.budget.spent is Spent.TIME
        return self._used + (self._clock() - self._began_s if is_time else 0.0)

    @property
    def left(self) -> float:
        """What ended trials have left of it, infinite without a budget."""
        return math.inf if self.budget is None else self.budget.amount - self.used

    def cost(self, trial: Trial, seconds: float) -> float:
        """Return what seconds of a trial cost."""
        if self.budget is not None and self.budget.spent is Spent.TIME:
            return seconds
        allocation = trial.allocation
        sizes = allocation.world_size, allocation.num_nodes
        return seconds * self._rate(trial.node_group, *sizes)

    @property
    def unit(self) -> Spent:
        """What costs are of: device-seconds where there is no budget."""
        return Spent.DEVICE_TIME if self.budget is None else self.budget.spent

    def needed(self, trial: Trial, seconds: float) -> float:
        """Return what must be left for seconds of a trial: ending it takes some."""
        return self.cost(trial, seconds + self._ending_s)

    def allows(self, trial: Trial) -> bool:
        """Tell whether a trial may start beside those that run."""
        if self.budget is None:
            return True
        return self._expected(trial) < self.left - self._promised()

    def claim(self, trial: Trial) -> bool:
        """Set aside what a trial is expected to cost, if it may start."""
        if not self.allows(trial):
            return False
        if self.budget is not None:
            self._running[trial.trial_id] = _Running(
                rate=self.cost(trial, 1.0),
                started_s=self._clock(),
                expected=self._expected(trial),
            )
        return True

    def settle(self, trial: Trial, held_s: float) -> None:
        """Count what an attempt took."""
        if self.budget is None:
            return
        running = self._running.pop(trial.trial_id)
        if self.budget.spent is not Spent.TIME:
            self._used += running.rate * held_s

    @property
    def deadline_s(self) -> float | None:
        """When to end what runs, on the clock; None: there is nothing to end.

        Time passes also where nothing runs, such as while nodes are waited for.
        """
        if self.budget is None:
            return None
        if self.budget.spent is Spent.TIME:
            return self._began_s + self.budget.amount - self._used - self._ending_s
        if not self._running:
            return None

        # what ran for (end - start) seconds at its rate adds up to what is left
        running = self._running.values()
        begun = sum(trial.rate * trial.started_s for trial in running)
        end_s = (self.left + begun) / sum(trial.rate for trial in running)
        return end_s - self._ending_s

    @property
    def is_over(self) -> bool:
        """Whether what runs has to end now."""
        deadline_s = self.deadline_s
        return deadline_s is not None and self._clock() >= deadline_s

    def why_spent(self, device_hour_word: str) -> str:
        """Say that the budget is spent."""
        assert self.budget is not None
        words = self.budget.in_words(device_hour_word)
        used = self.budget.used_in_words(self.used)
        more = Option("budget", "MORE")
        return f"the budget of {words} is spent ({used} used); {more} goes on"

    def _expected(self, trial: Trial) -> float:
        return self.needed(trial, self._expected_s(trial) or 0.0)

    def _promised(self) -> float:
        """Return what the trials that run will cost, beside what has passed."""
        if self.budget is not None and self.budget.spent is Spent.TIME:
            return 0.0
        now_s = self._clock()
        return sum(
            max(running.expected, running.rate * (now_s - running.started_s))
            for running in self._running.values()
        )
