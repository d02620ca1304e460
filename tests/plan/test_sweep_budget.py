"""The budget of a sweep: what it reads, what it allows, and that it is kept."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.budget import Account, Budget, Spent


@pytest.mark.parametrize(
    ("text", "spent", "amount", "words"),
    [
        ("10gpu-h", Spent.DEVICE_TIME, 36_000, "10 GPU-h"),
        ("0.5", Spent.DEVICE_TIME, 1800, "0.5 GPU-h"),
        ("30 core-min", Spent.DEVICE_TIME, 1800, "0.5 GPU-h"),
        ("20usd", Spent.MONEY, 20, "20 usd"),
        ("€3.50", Spent.MONEY, 3.5, "3.5 eur"),
        ("2h", Spent.TIME, 7200, "2 h"),
        ("90min", Spent.TIME, 5400, "90 min"),
    ],
)
def test_a_budget_is_device_time_money_or_time(
    text: str, spent: Spent, amount: float, words: str
) -> None:
    budget = Budget.parse(text)
    assert (budget.spent, budget.amount) == (spent, amount)
    assert budget.in_words("GPU-h") == words


@pytest.mark.parametrize("text", ["", "-2h", "0usd", "10 apples", "gpu-h", "1e999h"])
def test_other_texts_are_refused_with_the_three_ways_to_write_it(text: str) -> None:
    with pytest.raises(SpecError, match=r"'10gpu-h'.*'20usd'.*'2h'"):
        Budget.parse(text)


def trial(number: int, num_devices: int = 1) -> Trial:
    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload="emulated",
        allocation=Allocation.packed(num_devices, 4),
        local_batch_size=8,
        seed=number,
    )


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_budget_everything_may_start() -> None:
    account = Account(expected_s=lambda asked: 1e12)
    assert account.claim(trial(0, 4096))
    account.settle(trial(0, 4096), 1e9)
    assert account.deadline_s is None
    assert not account.is_over


def test_what_runs_is_set_aside() -> None:
    clock = Clock()
    budget = Budget(amount=100.0, spent=Spent.DEVICE_TIME)
    account = Account(budget, expected_s=lambda t: 10.0, ending_s=0.0, clock=clock)
    assert account.claim(trial(0, 4))
    assert account.claim(trial(1, 4))
    assert not account.allows(trial(2, 4))
    assert account.allows(trial(3, 1))
    account.settle(trial(0, 4), 2.0)
    assert account.used == 8.0
    assert account.allows(trial(2, 4))


def test_trials_that_overrun_are_to_end_before_the_budget_does() -> None:
    clock = Clock()
    budget = Budget(amount=100.0, spent=Spent.DEVICE_TIME)
    account = Account(budget, expected_s=lambda t: 1.0, ending_s=5.0, clock=clock)
    assert account.claim(trial(0, 4))
    assert account.deadline_s == pytest.approx(100.0 + 100.0 / 4 - 5.0)
    clock.now_s = 119.0
    assert not account.is_over
    clock.now_s = 120.0
    assert account.is_over
    assert account.used + 4 * (20.0 + 5.0) == 100.0


def test_money_is_what_the_rate_says() -> None:
    def rate(group: str | None, num_devices: int, num_nodes: int) -> float:
        return 2.0 * num_nodes

    budget = Budget(amount=10.0, spent=Spent.MONEY, currency="eur")
    account = Account(budget, rate=rate, used=1.0, ending_s=0.0)
    assert account.claim(trial(0, 6))
    account.settle(trial(0, 6), 1.5)
    assert account.used == 1.0 + 2.0 * 2 * 1.5
    assert "10 eur is spent (7 used)" in account.why_spent("GPU-h")


def test_time_passes_whatever_runs() -> None:
    clock = Clock()
    budget = Budget(amount=60.0, spent=Spent.TIME)
    account = Account(
        budget, used=20.0, expected_s=lambda t: 15.0, ending_s=1.0, clock=clock
    )
    assert account.deadline_s == 100.0 + 40.0 - 1.0, "while nodes are waited for, too"
    assert account.claim(trial(0, 8))
    assert account.claim(trial(1, 8))
    clock.now_s += 30.0
    assert account.left == 10.0
    assert not account.allows(trial(2))
    assert account.deadline_s == pytest.approx(100.0 + 40.0 - 1.0)


@dataclass
class Simulated:
    """A sweep with a clock of its own: trials fail, start slowly and overrun."""

    rng: np.random.Generator
    budget: Budget
    used: float = 0.0  # by earlier sweeps of the run
    num_devices: int = 16
    clock: Clock = field(default_factory=Clock)

    def run(self, waiting: list[Trial]) -> float:
        """Run trials as the driver does; return what was used in all."""
        account = Account(
            self.budget,
            used=self.used,
            expected_s=lambda asked: float(5 + asked.seed % 30),
            ending_s=3.0,
            clock=self.clock,
        )
        running: list[tuple[float, int, Trial, float]] = []
        free = self.num_devices
        while True:
            for asked in [*waiting]:
                if asked.world_size <= free and account.claim(asked):
                    waiting.remove(asked)
                    free -= asked.world_size
                    lasts_s = self._lasts_s(asked)
                    end_s = self.clock.now_s + lasts_s
                    started_s = self.clock.now_s
                    heapq.heappush(running, (end_s, asked.seed, asked, started_s))
            if not running:
                return account.used

            deadline_s = account.deadline_s
            assert deadline_s is not None
            if running[0][0] > deadline_s:
                self.clock.now_s = max(self.clock.now_s, deadline_s)
                assert account.is_over
                for _, _, asked, started_s in running:
                    ends_s = self.clock.now_s + self.rng.uniform(0.0, 3.0)
                    account.settle(asked, ends_s - started_s)
                return account.used

            self.clock.now_s, _, asked, started_s = heapq.heappop(running)
            free += asked.world_size
            account.settle(asked, self.clock.now_s - started_s)
            if self.rng.random() < 0.2:  # it failed, and runs again
                waiting.append(asked)

    def _lasts_s(self, asked: Trial) -> float:
        slow = self.rng.exponential(60.0) if self.rng.random() < 0.3 else 0.0
        return (5 + asked.seed % 30) * self.rng.uniform(0.3, 2.0) + slow


def test_a_thousand_sweeps_keep_their_budgets() -> None:
    ended_early = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        sizes = 2 ** rng.integers(0, 5, size=12)
        trials = [trial(n, int(size)) for n, size in enumerate(sizes)]
        amount = float(rng.uniform(20.0, 4000.0))
        sweep = Simulated(rng, Budget(amount=amount, spent=Spent.DEVICE_TIME))
        sweep.used = sweep.run(trials)
        assert sweep.used <= amount
        ended_early += bool(trials)

        more = Budget(amount=1.5 * amount, spent=Spent.DEVICE_TIME)
        again = Simulated(rng, more, used=sweep.used).run(trials)
        assert sweep.used <= again <= 1.5 * amount
    assert 200 < ended_early < 1000, "budgets of both kinds were tried"
