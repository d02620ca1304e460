from dataclasses import replace

import numpy as np
import pytest
from gang import throughput_trial
from sentences import refused

from scalelab.experiment.rates import LearningRateRule, scaled_rate
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import LearningRate
from scalelab.kinds.strategies import STRATEGIES

LINEAR, SQRT, NONE = (
    LearningRateRule.LINEAR,
    LearningRateRule.SQRT,
    LearningRateRule.NONE,
)


def test_goyal_2017_table() -> None:
    # eta = 0.1 * kn / 256: 3.2 at a batch of 8192 (section 5.1).
    rate = scaled_rate(0.1, rule=LINEAR, at_batch=256, global_batch_size=8192)

    assert rate == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("parallelism", "world_size", "rate"),
    [("parameter_server", 8, 0.1 / 32), ("parameter_server", 1, 0.1), ("ddp", 8, 0.1)],
)
def test_staleness_divides_by_the_steps_in_flight(
    parallelism: str, world_size: int, rate: float
) -> None:
    options = {"communication_window": 4}
    in_flight = STRATEGIES[parallelism].steps_in_flight(world_size, options)
    found = scaled_rate(
        0.1,
        rule=LearningRateRule.STALENESS,
        at_batch=64,
        global_batch_size=256,
        steps_in_flight=in_flight,
    )
    assert found == pytest.approx(rate)


@pytest.mark.parametrize("rule", LearningRateRule)
def test_a_rule_keeps_the_base_where_it_was_tuned(
    rule: LearningRateRule, rng: np.random.Generator
) -> None:
    for batch in rng.integers(1, 10_000, 20):
        rate = scaled_rate(
            0.3, rule=rule, at_batch=int(batch), global_batch_size=int(batch)
        )
        assert rate == 0.3


def test_doubling_twice_is_doubling_by_four(rng: np.random.Generator) -> None:
    for rule, factor in ((LINEAR, 4), (SQRT, 2), (NONE, 1)):
        base = float(rng.uniform(0.01, 1))
        rate = scaled_rate(base, rule=rule, at_batch=32, global_batch_size=128)
        assert rate == pytest.approx(base * factor)


def test_warm_up_is_a_ramp_that_ends_at_the_rate() -> None:
    rate = LearningRate(
        base=0.1, at_batch=32, rule="linear", warmup_samples=1000, value=0.4
    )

    assert rate.at(0) == 0
    assert rate.at(250) == pytest.approx(0.1)
    assert rate.at(1000) == rate.at(10**9) == 0.4


def test_without_warm_up_the_rate_is_there_at_once() -> None:
    rate = LearningRate(
        base=0.1, at_batch=None, rule="none", warmup_samples=0, value=0.1
    )

    assert rate.at(0) == 0.1


def experiment(learning_rate: str) -> Experiment:
    return Experiment.from_text(
        "name: a\nworkload: digits_mlp\ngpus: 1\nlocal_batch_size: 8\n"
        f"job: {{epochs: 2, samples_per_epoch: 100}}\nlearning_rate: {learning_rate}"
    )


@pytest.mark.parametrize(
    ("warmup", "samples"), [("epochs: 1.5", 150), ("samples: 7", 7), ("steps: 3", 192)]
)
def test_warm_up_is_counted_in_samples(warmup: str, samples: int) -> None:
    (rate,) = experiment(f"{{base: 0.1, warmup: {{{warmup}}}}}").rate_settings
    assert rate is not None

    assert rate.at(64, samples_per_epoch=100).warmup_samples == samples


def test_a_number_alone_is_a_rate_without_a_rule() -> None:
    (rate,) = experiment("1e-3").rate_settings
    assert rate is not None

    assert rate.at(64, None) == LearningRate(
        base=0.001, at_batch=None, rule="none", warmup_samples=0, value=0.001
    )


def test_a_rule_needs_the_batch_it_scales_from() -> None:
    with refused("no_batch_of_rate", "rule=sqrt"):
        experiment("{base: 0.1, rule: [none, sqrt]}")


def test_bases_rules_and_warm_ups_are_axes() -> None:
    asked = experiment(
        "{base: [0.05, 0.1], at_batch: 8, rule: [none, linear], "
        "warmup: [none, {steps: 500}]}"
    )
    rates = [rate.at(16, None) for rate in asked.rate_settings if rate]

    assert [(r.base, r.rule, r.warmup, r.value) for r in rates] == [
        (0.05, "none", "", 0.05),
        (0.05, "none", "500 steps", 0.05),
        (0.05, "linear", "", 0.1),
        (0.05, "linear", "500 steps", 0.1),
        (0.1, "none", "", 0.1),
        (0.1, "none", "500 steps", 0.1),
        (0.1, "linear", "", 0.2),
        (0.1, "linear", "500 steps", 0.2),
    ]
    assert rates[1].warmup_samples == 8000


def test_a_list_alone_is_one_of_rates() -> None:
    rates = experiment("[0.1, 0.2]").rate_settings
    assert [rate.base for rate in rates if rate] == [0.1, 0.2]


def test_how_a_warm_up_was_asked_is_no_part_of_a_trials_identity() -> None:
    rate = LearningRate(
        base=0.1, at_batch=None, rule="none", warmup_samples=64, value=0.1
    )
    trial = throughput_trial("digits_mlp", learning_rate=rate)
    named = replace(trial, learning_rate=replace(rate, warmup="1 steps"))
    assert named.trial_id == trial.trial_id
