"""The source of ``rule: tuned``: the rate of each batch, beside what is planned."""

import math
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from searched import SITE

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.laws.convergence.rows import run_cost
from scalelab.plan.source import Observation
from scalelab.plan.tracked import TrackedSource, source_of

TEXT = """\
name: tuned
workload: digits_mlp
measure: {long_trial: none, kind: [throughput, convergence], repeats: 2}
job: {epochs: 40, samples_per_epoch: 1437, target: val_acc >= 0.95}
gpus: [1, 2]
global_batch_size: [32, 128, 512]
learning_rate: {base: 0.1, at_batch: 32, rule: tuned}
seed: [0, 1, 2]
"""
End = Callable[[Trial], dict[str, Any]]


def source(text: str = TEXT) -> TrackedSource:
    return source_of(Experiment.from_text(text), SITE)


def best_rate(batch: int) -> float:
    return 0.15 * (batch / 32) ** 0.8


def reached(trial: Trial) -> dict[str, Any]:
    """Return the end of a run that needs least at the best rate of its batch."""
    assert trial.learning_rate is not None
    apart = math.log(trial.learning_rate.value / best_rate(trial.global_batch_size))
    samples = 5000 * math.exp(apart**2 + 0.01 * trial.seed)
    return {"outcome": "completed", "samples_to_target": samples}


def swept(
    trials: TrackedSource, end: End = reached, *, most: int = 1000
) -> list[tuple[Trial, Observation]]:
    ended: list[tuple[Trial, Observation]] = []
    while len(ended) < most and (trial := trials.ask()) is not None:
        row = {"trial_id": trial.trial_id, "world_size": 1, **end(trial)}
        ended.append((trial, row))
        trials.tell(row)
    return ended


def test_where_all_rates_diverge_lower_ones_are_tried() -> None:
    def end(trial: Trial) -> dict[str, Any]:
        assert trial.learning_rate is not None
        if trial.learning_rate.value > 1:
            return {"outcome": "target_not_reached", "diverged": True}
        return reached(trial)

    ended = swept(source(TEXT.replace("base: 0.1", "base: 10")), end)
    found = rates(ended)
    assert min(found[32]) < 1 < max(found[32])


def test_where_no_rate_is_low_enough_the_search_ends() -> None:
    lost = {"outcome": "target_not_reached", "diverged": True}
    ended = swept(source(), lambda trial: dict(lost), most=200)
    assert len(ended) < 200


def rates(ended: list[tuple[Trial, Observation]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for trial, _ in ended:
        if trial.kind == "convergence" and trial.learning_rate:
            rate = trial.learning_rate.value
            found.setdefault(trial.global_batch_size, []).append(rate)
    return found


def found(ended: list[tuple[Trial, Observation]]) -> dict[int, float]:
    """Return the rate of each batch whose runs cost least, by their median."""
    costs: dict[int, dict[float, list[float]]] = {}
    for trial, row in ended:
        if trial.kind == "convergence" and trial.learning_rate:
            of_batch = costs.setdefault(trial.global_batch_size, {})
            of_batch.setdefault(trial.learning_rate.value, []).append(run_cost(row))
    return {
        batch: min(every, key=lambda rate: median(every[rate]))
        for batch, every in costs.items()
    }


def test_each_batch_comes_to_its_rate_in_few_runs() -> None:
    trials = source()
    assert (trials.total, trials.remaining) == (None, None)
    ended = swept(trials)
    assert trials.remaining == 0

    for batch, tried in rates(ended).items():
        best = found(ended)[batch]
        assert tried.count(best) == 3  # it was run with every seed
        assert abs(math.log(best / best_rate(batch))) <= math.log(1.4)
        assert len(set(tried)) <= 7
    assert list(rates(ended)) == [32, 128, 512]


def test_throughput_is_measured_beside() -> None:
    kinds = [trial.kind for trial, _ in swept(source())]
    assert kinds.count("throughput") == 3 * 2 * 2
    without = source(TEXT.replace("[throughput, convergence]", "convergence"))
    assert {trial.kind for trial, _ in swept(without)} == {"convergence"}


def test_what_a_search_begins_with_follows_from_the_batches_before() -> None:
    """From two batches on it is the rule that they follow."""
    ended = swept(source(TEXT.replace("512", "512, 2048")))
    first = rates(ended)[2048][0]
    assert first / found(ended)[512] == pytest.approx(4, rel=0.01)  # linear


def test_trials_run_on_the_smallest_allocation() -> None:
    ended = swept(source(TEXT.replace("512]", "512]\nlocal_batch_size: 32")))
    sizes = {
        (t.global_batch_size, t.world_size, t.gradient_accumulation_steps)
        for t, _ in ended
        if t.kind == "convergence"
    }
    assert sizes == {(32, 1, 1), (128, 1, 4), (512, 1, 16)}


@pytest.mark.parametrize("done", [1, 7, 20, 31])
def test_a_sweep_that_is_resumed_goes_on_alike(done: int) -> None:
    every = swept(source())
    again = source()
    for _, row in reversed(every[:done]):
        again.resume(row)
    after = swept(again)
    trials = {trial.trial_id for trial, _ in every[:done]}
    trials |= {trial.trial_id for trial, _ in after}
    assert trials == {trial.trial_id for trial, _ in every}


def test_runs_that_miss_lead_towards_those_that_do_not() -> None:
    """Far from the best rate nothing reaches the target: the metric tells the way."""

    def end(trial: Trial) -> dict[str, Any]:
        assert trial.learning_rate is not None
        apart = math.log(trial.learning_rate.value / 1.6)
        if abs(apart) < 0.5:
            return {"outcome": "completed", "samples_to_target": 9000}
        missed = {"target_value": 0.95, "final_metric": 0.95 - 0.1 * abs(apart)}
        return {"outcome": "target_not_reached", "num_samples": 57480, **missed}

    text = TEXT.replace("[32, 128, 512]", "32")
    (rate,) = found(swept(source(text), end)).values()
    assert abs(math.log(rate / 1.6)) < 0.5


def test_where_every_run_fails_nothing_more_is_asked() -> None:
    ended = swept(source(), lambda trial: {"outcome": "failed"})
    assert rates(ended) == {
        batch: pytest.approx([rate, rate / 2, rate * 2], rel=1e-3)
        for batch, rate in ((32, 0.1), (128, 0.2), (512, 0.4))
    }


@pytest.mark.parametrize("axis", ["optimizer: [sgd, adamw]", "precision: [fp32, bf16]"])
def test_settings_are_searched_apart(axis: str) -> None:
    ended = swept(source(f"{TEXT}{axis}\n"))
    alone = swept(source())
    convergence = [t for t, _ in ended if t.kind == "convergence"]
    assert len(convergence) == 2 * sum(t.kind == "convergence" for t, _ in alone)
