import dataclasses
import json

import pytest
from sentences import refused

from scalelab.experiment.trial import LearningRate, Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.target import MetricMode, Target

TRIAL = Trial(
    kind=TrialKind.CONVERGENCE,
    workload="digits_mlp",
    allocation=Allocation(devices_per_node=(4, 4)),
    local_batch_size=16,
    gradient_accumulation_steps=2,
    learning_rate=LearningRate(
        base=0.1, at_batch=32, rule="linear", warmup_samples=64, value=0.8
    ),
    options={"feed": "sharded", "compile": True},
    measurement=Measurement(
        target=Target(metric="val_acc", mode=MetricMode.MAX, value=0.95),
        max_samples=1000,
    ),
)


def test_global_batch_is_local_times_ranks_times_accumulation() -> None:
    assert TRIAL.world_size == TRIAL.data_parallel_size == 8
    assert TRIAL.global_batch_size == 16 * 8 * 2


def test_a_trial_survives_json() -> None:
    again = Trial.from_json(json.loads(json.dumps(TRIAL.to_json())))

    assert again == TRIAL
    assert again.trial_id == TRIAL.trial_id


def test_a_trial_without_rate_and_target_survives_json() -> None:
    plain = dataclasses.replace(TRIAL, learning_rate=None, measurement=Measurement())

    assert Trial.from_json(json.loads(json.dumps(plain.to_json()))) == plain


def test_the_id_does_not_change_between_versions() -> None:
    assert TRIAL.trial_id == "c7ae6c0c7168"


def test_a_node_group_is_part_of_the_id_and_survives_json() -> None:
    grouped = dataclasses.replace(TRIAL, node_group="a100")

    assert grouped.trial_id != TRIAL.trial_id
    assert Trial.from_json(json.loads(json.dumps(grouped.to_json()))) == grouped


def test_a_trial_written_before_there_were_groups_is_read() -> None:
    written = TRIAL.to_json()
    del written["node_group"]

    assert Trial.from_json(written) == TRIAL


def test_the_id_depends_on_the_configuration_only() -> None:
    longer = dataclasses.replace(TRIAL, measurement=Measurement(steps=7))
    other = dataclasses.replace(TRIAL, seed=1)

    assert longer.trial_id == TRIAL.trial_id
    assert other.trial_id != TRIAL.trial_id


@pytest.mark.parametrize("name", ["local_batch_size", "gradient_accumulation_steps"])
def test_counts_below_one_are_refused(name: str) -> None:
    with refused("below_one", f"{name}=0"):
        dataclasses.replace(TRIAL, **{name: 0})


def test_a_trial_says_what_it_is() -> None:
    assert str(TRIAL).endswith("(convergence, 8 devices on 2x4, global batch 256)")
    alone = dataclasses.replace(TRIAL, allocation=Allocation.packed(1, 1))
    assert str(alone).endswith("(convergence, 1 device on 1x1, global batch 32)")


def test_devices_are_packed_on_as_few_nodes_as_possible() -> None:
    uneven = Allocation.packed(6, devices_on_node=4)

    assert uneven.devices_per_node == (4, 2)
    assert uneven.num_nodes == 2
    assert uneven.gpus_per_node == 3
    assert str(uneven) == "2x4+2"
    assert Allocation.packed(8, devices_on_node=4).devices_per_node == (4, 4)


def test_the_order_of_nodes_makes_no_other_allocation() -> None:
    assert Allocation(devices_per_node=(2, 4)) == Allocation(devices_per_node=(4, 2))


@pytest.mark.parametrize("nodes", [(), (0,), (4, -1)])
def test_an_empty_node_is_refused(nodes: tuple[int, ...]) -> None:
    with refused("not_an_allocation"):
        Allocation(devices_per_node=nodes)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("val_loss <= 2.9", Target(metric="val_loss", mode=MetricMode.MIN, value=2.9)),
        ("val_acc>=0.75", Target(metric="val_acc", mode=MetricMode.MAX, value=0.75)),
        ("top1 >= 1e-2", Target(metric="top1", mode=MetricMode.MAX, value=0.01)),
    ],
)
def test_a_target_is_read_as_written(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text", ["", "val_acc", "val_acc > 1", "val_acc >= much", "x >= nan", ">= 3"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with refused("not_a_target", repr(text)):
        Target.parse(text)


def test_a_target_is_reached_in_its_own_direction() -> None:
    accuracy, loss = Target.parse("a >= 0.5"), Target.parse("l <= 0.5")

    assert accuracy.is_reached_by(0.5)
    assert not accuracy.is_reached_by(0.4)
    assert loss.is_reached_by(0.4)
    assert not loss.is_reached_by(0.6)
