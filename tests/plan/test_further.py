"""One trial more than an experiment asks for."""

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.plan.further import further_trial
from scalelab.plan.tracked import TrackedSource, source_of
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 4})
TEXT = """\
name: small
workload: digits_mlp
learning_rate: {base: 0.1, at_batch: 32, rule: [linear, sqrt]}
measure: {long_trial: none, repeats: 2}
gpus: [1, 2]
local_batch_size: [8, 16]
precision: [fp32, bf16]
"""
ASKED = Experiment.from_text(TEXT)


def further(text: str, known: set[str] | None = None) -> Trial:
    return further_trial(ASKED, SITE, text, known or set())


def row(trial: Trial) -> dict[str, object]:
    return {
        "trial_id": trial.trial_id,
        "outcome": "completed",
        "allocated_gpu_s": 2.0,
        "world_size": trial.world_size,
        "device_ids": [],
    }


def test_what_is_not_said_is_the_experiments_own() -> None:
    trial = further("gpus=8,local_batch_size=32")
    assert str(trial.allocation) == "2x4"
    assert (trial.local_batch_size, trial.gradient_accumulation_steps) == (32, 1)
    assert (trial.kind, trial.precision, trial.repeat) == ("throughput", "fp32", 0)


def test_all_of_it_may_be_said() -> None:
    trial = further(
        "gpus=4,nodes=2,local_batch_size=8,gradient_accumulation_steps=3,"
        "precision=bf16,kind=convergence,lr_rule=sqrt"
    )
    assert str(trial.allocation) == "2x2"
    assert trial.gradient_accumulation_steps == 3
    assert (trial.kind, trial.precision) == ("convergence", "bf16")
    assert trial.learning_rate is not None
    assert trial.learning_rate.rule == "sqrt"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x4", r"trial: '2x4' is no NAME=VALUE\. Write, for example, gpus=16,"),
        ("gpus=2", r"'gpus=2' says no local_batch_size\."),
        ("gpus=0,local_batch_size=4", r"gpus=0 must be a whole number of at least 1"),
        ("gpus=2,nodes=3,local_batch_size=4", r"nodes=3 is more than gpus=2\."),
        (
            "gpus=64,local_batch_size=4",
            r"16x4 does not fit the site, 2 nodes x 4 devices on a node\.",
        ),
        (
            "gpus=8,nodes=1,local_batch_size=4",
            r"1x8 does not fit the site, 2 nodes x 4 devices on a node\.",
        ),
        (
            "gpus=2,local_batch_size=4,precision=fp16",
            r"precision=fp16 is not among what .* Valid: fp32, bf16\.",
        ),
        ("gpus=2,local_batch_size=4,foo=1", r"the setting=foo is not among"),
        (
            "gpus=2,local_batch_size=4,kind=through",
            r"Did you mean 'throughput'\? Valid: throughput, convergence",
        ),
        ("gpus=2,local_batch_size=4,lr_rule=none", r"Valid: linear, sqrt\."),
    ],
)
def test_what_cannot_be_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        further(text)


def test_a_search_takes_no_further_trial() -> None:
    text = TEXT.partition("learning_rate:")[0] + (
        "tune: {learning_rate: {log: [1.0e-3, 1.0]}}\nobjective: val_acc\ntrials: 2\n"
        "measure: {kind: convergence}\njob: {epochs: 2, samples_per_epoch: 1437}\n"
        "gpus: 1\nlocal_batch_size: 32\n"
    )
    search = Experiment.from_text(text)
    with refused("trial_refused", "small is a search"):
        further_trial(search, SITE, "gpus=1,local_batch_size=8", set())


def proposing(text: str) -> tuple[TrackedSource, Trial]:
    source = source_of(ASKED, SITE)
    assert source.plan is not None
    trial = further(text, {each.trial_id for each in source.plan.trials})
    source.propose(trial)
    return source, trial


def test_a_trial_of_the_plan_is_repeated_once_more() -> None:
    _, trial = proposing("gpus=1,local_batch_size=8")
    assert trial.repeat == 2


def test_it_comes_before_those_of_the_plan_and_counts() -> None:
    planned = source_of(ASKED, SITE)
    assert planned.total is not None
    source, trial = proposing("gpus=8,local_batch_size=8")
    assert source.total == planned.total + 1 == source.remaining
    asked = []
    while (each := source.ask()) is not None:
        asked.append(each)
        source.tell(row(each))
    assert asked[0] == trial
    assert len({each.trial_id for each in asked}) == planned.total + 1
    assert source.remaining == 0
