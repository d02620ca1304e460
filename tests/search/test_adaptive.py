"""The source ``adaptive``: sweeps of machines whose truth is known, without nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_tables import GIGABIT, Configuration, Machine

from scalelab.errors import SpecError, StoreError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.plan.budget import Account, Budget, Spent
from scalelab.plan.inquiry import Ending, Purpose
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.records.columns import SCHEMA_VERSION
from scalelab.records.taken_over import taken_over
from scalelab.search.adaptive import AdaptiveTrials
from scalelab.search.expected import expected
from scalelab.session import dry_run
from scalelab.site.choice import site_of

TEXT = """\
name: adaptive
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {long_trial: none, warmup_steps: 2, steps: 50, repeats: 3}
job: {samples: 100000000}
gpus: {from: 1, to: 32}
local_batch_size: {from: 16, to: 128}
"""
CONVERGENCE = """\
name: adaptive
workload: digits_mlp
measure: {long_trial: none, kind: [throughput, convergence]}
job: {epochs: 9, samples_per_epoch: 1437, target: val_acc >= 0.9}
gpus: [1, 2]
local_batch_size: 32
learning_rate: 0.1
"""
SITE = site_of({"device_type": "cpu", "nodes": 8, "gpus_per_node": 4})
START_UP_S = 5.0
FURTHER = (pytest.mark.slow, pytest.mark.repetition)


@dataclass
class Sweep:
    """A sweep of one trial at a time, whose trials take what a machine says."""

    machine: Machine = field(default_factory=Machine)
    text: str = TEXT
    parameters: Mapping[str, Any] = field(default_factory=dict)
    budget_gpu_s: float = 1e9
    broken: frozenset[tuple[int, int]] = frozenset()  # devices and local batch
    factors: Mapping[tuple[int, int], float] = field(default_factory=dict)  # of times
    spread: float = 0.01
    trials: list[Trial] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        text = f"{self.text}source: {dict(self.parameters, name='adaptive')}\n"
        self.source = source_of(Experiment.from_text(text), SITE)
        self.account = self._account(self.source)

    def _account(self, source: TrackedSource) -> Account:
        used = sum(row["allocated_gpu_s"] for row in self.rows)
        budget = Budget(amount=self.budget_gpu_s, spent=Spent.DEVICE_TIME)
        account = Account(budget, used=used, expected_s=source.expected_s)
        source.allow(account)
        return account

    def run(self, most: int = 100) -> Sweep:
        while len(self.trials) < most and (trial := self.source.ask()) is not None:
            assert self.account.claim(trial), "it proposes nothing it cannot pay"
            assert trial not in self.trials, "nothing is measured twice"
            self.trials.append(trial)
            self.rows.append(self.row(trial))
            self.account.settle(
                trial, self.rows[-1]["allocated_gpu_s"] / trial.world_size
            )
            self.source.tell(self.rows[-1])
        return self

    def row(self, trial: Trial) -> dict[str, Any]:
        at = Configuration(
            trial.world_size, trial.allocation.num_nodes, trial.local_batch_size
        )
        step_s = self.machine.step_time_s(at)
        assert step_s is not None
        rng = np.random.default_rng([*at, trial.repeat])
        step_s *= float(np.exp(self.spread * rng.standard_normal()))
        step_s *= self.factors.get((trial.world_size, trial.local_batch_size), 1.0)
        is_broken = (trial.world_size, trial.local_batch_size) in self.broken
        return {
            "schema_version": SCHEMA_VERSION,
            "run": "adaptive",
            "trial_id": trial.trial_id,
            "repeat": trial.repeat,
            "attempt": 1,
            "outcome": "out_of_memory" if is_broken else "completed",
            "kind": "throughput",
            "workload": "emulated",
            "device_type": "cpu",
            "device_name": "made up",
            "parallelism": trial.parallelism,
            "precision": trial.precision,
            "world_size": trial.world_size,
            "num_nodes": trial.allocation.num_nodes,
            "data_parallel_size": trial.data_parallel_size,
            "local_batch_size": trial.local_batch_size,
            "gradient_accumulation_steps": 1,
            "global_batch_size": trial.global_batch_size,
            "num_steps": 50,
            "step_time_s": None if is_broken else step_s,
            "allocated_gpu_s": trial.world_size * (START_UP_S + 52 * step_s),
        }

    def regret(self, num_devices: int | None) -> float:
        """Return by which share the best batch of so many devices is worse than any.

        What is kept small is time x devices^log2(1.7).
        """
        found = {}
        for size in (1, 2, 4, 8, 16, 32):
            for local in (16, 32, 64, 128):
                at = Configuration(size, -(-size // 4), local)
                step_s = self.machine.step_time_s(at)
                assert step_s is not None
                per_sample_s = step_s / at.global_batch
                found[size, local] = per_sample_s * size ** np.log2(1.7)
        here = min(found[at] for at in found if at[0] == num_devices)
        return float(here / min(found.values()) - 1)


@cache
def usual() -> Sweep:
    """Return the sweep of the usual machine, run to its end."""
    return Sweep().run()


def places(sweep: Sweep) -> list[tuple[int, int, int]]:
    return [(t.world_size, t.local_batch_size, t.repeat) for t in sweep.trials]


@pytest.mark.parametrize(
    "gigabits", [10, *(pytest.param(rate, marks=FURTHER) for rate in (1, 100))]
)
def test_it_finds_where_more_devices_stop_paying_for_a_part_of_the_grid(
    gigabits: int,
) -> None:
    machine = Machine(between_bytes_per_s=gigabits * GIGABIT)
    sweep = Sweep(machine).run()
    found = sweep.source.inquiry
    assert found is not None
    assert found.ending is Ending.KNOWN
    assert sweep.regret(found.pick) <= 0.05
    assert found.surety is not None
    assert found.surety >= 0.9
    assert found.grid_gpu_hours is not None
    assert found.spent_gpu_hours < 0.25 * found.grid_gpu_hours
    assert places(sweep)[0] == (1, 128, 0), "the cheapest corner"


@pytest.fixture
def _predicted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict candidates at each ask, also from the same rows."""
    monkeypatch.setattr("scalelab.search.adaptive.expected", expected)


@pytest.mark.usefixtures("_predicted_anew")
@pytest.mark.parametrize(
    "num_before", [3, *(pytest.param(number, marks=FURTHER) for number in (1, -1))]
)
def test_a_resumed_sweep_goes_on_alike(num_before: int) -> None:
    whole = usual()
    again = Sweep()
    for row in whole.rows[:num_before]:
        again.source.resume(row)
    assert places(again.run()) == places(whole)[num_before:]


@pytest.mark.usefixtures("_predicted_anew")
def test_the_order_in_which_trials_are_told_does_not_matter() -> None:
    whole = usual()
    again = Sweep()
    for row in whole.rows[2::-1]:
        again.source.resume(row)
    assert places(again.run()) == places(whole)[3:]


def test_it_ends_with_its_budget_and_says_what_more_would_buy() -> None:
    whole = usual()
    used = [row["allocated_gpu_s"] for row in whole.rows]
    sweep = Sweep(budget_gpu_s=sum(used) / 2).run()
    found = sweep.source.inquiry
    assert found is not None
    assert found.ending is Ending.SPENT
    assert found.following is not None
    assert sweep.account.used < sweep.budget_gpu_s

    more = Sweep()
    for row in sweep.rows:
        more.source.resume(row)
    more.run()
    assert more.source.inquiry is not None
    assert more.source.inquiry.ending is Ending.KNOWN
    assert not {*places(more)} & {*places(sweep)}, "nothing is measured twice"


@pytest.mark.parametrize("jobs", [1, 10**6])
def test_a_trial_that_costs_more_than_it_could_save_is_not_run(jobs: int) -> None:
    text = TEXT.replace("samples: 100000000", "samples: 50000")
    sweep = Sweep(text=text, parameters={"jobs": jobs}).run()
    found = sweep.source.inquiry
    assert found is not None
    if jobs == 1:
        assert found.ending is Ending.NOT_WORTH
        assert len(sweep.trials) <= 3
    else:
        assert found.ending is Ending.KNOWN


def test_what_does_not_fit_into_memory_is_not_chosen() -> None:
    everywhere = frozenset((size, 128) for size in (1, 2, 4, 8, 16, 32))
    sweep = Sweep(broken=everywhere).run()
    found = sweep.source.inquiry
    assert found is not None
    assert found.ending is Ending.KNOWN
    confirmed = [trial for trial in sweep.trials if trial.world_size == found.pick]
    assert any(trial.local_batch_size < 128 for trial in confirmed)


def test_where_nothing_fits_into_memory_it_ends() -> None:
    sizes, batches = (1, 2, 4, 8, 16, 32), (16, 32, 64, 128)
    everything = frozenset((size, local) for size in sizes for local in batches)
    sweep = Sweep(broken=everything).run()
    assert len(sweep.trials) == len(everything), "each was tried once"
    some = Sweep(broken=everything - {(1, 16)}).run()
    assert some.source.inquiry is not None
    assert some.source.inquiry.ending is not None
    assert some.source.inquiry.pick == 1


def test_the_largest_local_batch_is_looked_for_first() -> None:
    auto = "{at_most: 64, multiple_of: 16}"
    sweep = Sweep(text=TEXT.replace("{from: 16, to: 128}", auto)).run()
    assert places(sweep)[:3] == [(1, 16, 0), (1, 32, 0), (1, 64, 0)]
    assert {trial.local_batch_size for trial in sweep.trials[3:]} == {64}
    assert sweep.source.inquiry is not None
    assert sweep.source.inquiry.ending is Ending.KNOWN


def test_several_trials_run_side_by_side_each_for_what_others_leave_open() -> None:
    sweep = Sweep().run(most=1)
    proposed = []
    while (trial := sweep.source.ask()) is not None:
        proposed.append(trial)
    assert 1 < len(proposed) <= 32
    assert sum(trial.world_size for trial in proposed) <= 32, "the site's devices"
    assert len({t.trial_id for t in proposed}) == len(proposed)


def test_limits_change_what_is_measured_and_chosen() -> None:
    sweep = Sweep(parameters={"question": {"max_time": "60h"}}).run()
    found = sweep.source.inquiry
    assert found is not None
    assert found.ending is Ending.KNOWN
    without = usual().source.inquiry
    assert without is not None
    assert found.pick is not None
    assert without.pick is not None
    assert found.pick < without.pick, "the cheapest that meets a mild deadline"


@pytest.mark.parametrize("link", ["", "100Gbit/s 5us"])
def test_the_second_node_is_bought_after_the_link_is_asked_for(link: str) -> None:
    parameters = {"question": {"between_nodes": link}} if link else {}
    sweep = Sweep(parameters=parameters)
    asked = []
    while (trial := sweep.source.ask()) is not None:
        inquiry = sweep.source.inquiry
        assert inquiry is not None
        if trial.allocation.num_nodes > 1:
            asked.append(inquiry.asks_for_link)
        sweep.source.tell(sweep.row(trial))
    assert asked
    assert asked[0] == (not link)
    assert not any(asked[1:])


def test_it_starts_from_the_rows_of_another_run() -> None:
    whole = usual()
    elsewhere = [row for row in whole.rows if row["world_size"] < 16]
    sweep = Sweep()
    for row in taken_over("other", elsewhere, workload="emulated"):
        sweep.source.resume({**row, "device_name": None})
    first = sweep.source.inquiry
    assert first is not None
    assert first.surety is not None, "they are known before anything ran"
    sweep.run()
    assert sweep.source.inquiry is not None
    assert sweep.source.inquiry.ending is Ending.KNOWN
    assert len(sweep.trials) < len(whole.trials)
    assert sweep.regret(sweep.source.inquiry.pick) <= 0.05


def test_every_setting_has_its_first_trial() -> None:
    text = TEXT + "precision: [fp32, bf16]\n"
    sweep = Sweep(text=text)
    first = [sweep.source.ask(), sweep.source.ask()]
    assert {trial and trial.precision for trial in first} == {"fp32", "bf16"}
    assert sweep.source.ask() is None, "nothing is known before they end"
    inquiry = sweep.source.inquiry
    assert inquiry is not None
    assert inquiry.following is not None
    assert inquiry.following.purpose is Purpose.FIRST


@pytest.mark.parametrize(
    ("text", "parameters", "message"),
    [
        (TEXT, {"question": {"max_tim": "4h"}}, "max_tim"),
        (TEXT, {"question": {"max_time": "soon"}}, "'soon' is not a duration"),
        (TEXT, {"question": {"confidence": 2}}, "source.question: confidence=2"),
        (TEXT, {"question": {"max_cost": "20usd"}}, "needs a price"),
        (TEXT, {"questions": {}}, "cannot be made with"),
        (
            TEXT.replace("{samples", "{global_batch_size: 100, samples"),
            {},
            "global batch of 100 is that of no candidate",
        ),
        (TEXT, {"question": {"max_batch": 8}}, "max_batch=8 is less than the least"),
        (
            TEXT.replace("samples: 1", "steps: 1"),
            {},
            "job.steps=100,000,000 is as many",
        ),
        (TEXT, {"question": {"learn_from": "runs/none"}}, "is not a run directory"),
        (TEXT, {"jobs": 0}, "source.jobs=0 must be a whole number of at least 1"),
        (TEXT.replace("job:", "# "), {}, "nothing says how long"),
        (
            CONVERGENCE,
            {},
            "chooses throughput trials",
        ),
    ],
)
def test_a_question_that_is_wrong_is_refused_before_anything_runs(
    text: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises((SpecError, StoreError), match=message):
        Sweep(text=text, parameters=parameters)


def test_a_price_under_the_question_is_one() -> None:
    question = {"max_cost": "100usd", "price": "2usd"}
    found = Sweep(parameters={"question": question}).run().source.inquiry
    assert found is not None
    assert found.ending is Ending.KNOWN


def test_what_it_says_before_anything_ran() -> None:
    text = TEXT + "precision: [fp32, bf16]\n"
    source = AdaptiveTrials(Experiment.from_text(text), SITE, {"max_time": "4h"})
    first, _, *trials = source.describe()
    assert first.startswith("Question: max_time 4h. Of 48 candidates, ")
    price = "a start-up and 52 steps of 1 emulated GPU, to begin with."
    assert trials == [
        f"Nothing is known yet: 1x1 with local batch 128, fp32 ddp, {price}",
        f"Also 1x1 with local batch 128, bf16 ddp, {price}",
    ]


def test_a_plan_shows_the_candidates_and_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = TEXT.replace("to: 32", "to: 2") + "source: adaptive\n"
    site = "site: {device_type: cpu, gpus_per_node: 2}\n"
    Path("e.yaml").write_text(text + site)
    planned = str(dry_run("e.yaml"))
    first = "1x1 with local batch 128, a start-up and 52 steps of 1 "
    assert first in planned
    assert "The candidates, and how many trials of each the whole grid" in planned
    assert "Device time to come: at most what --sweep-budget allows." in planned


def test_what_contradicts_the_pick_is_measured_again_and_then_believed() -> None:
    """On 16 devices one batch is much faster than all others let expect."""
    machine = Machine(between_bytes_per_s=10 * GIGABIT)
    sweep = Sweep(machine, factors={(16, 128): 0.6})
    again = []
    while (trial := sweep.source.ask()) is not None:
        inquiry = sweep.source.inquiry
        assert inquiry is not None
        assert inquiry.following is not None
        if inquiry.following.purpose is Purpose.CONTRADICTS:
            again.append((trial.world_size, trial.local_batch_size, trial.repeat))
        sweep.source.tell(sweep.row(trial))

    assert again == [(16, 128, 1)], "another run of the same configuration"
    found = sweep.source.inquiry
    assert found is not None
    assert (found.pick, found.ending) == (16, Ending.KNOWN)
