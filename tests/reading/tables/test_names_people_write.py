"""Columns as authors of tables name them: units, targets, nodes, what was missed."""

from collections.abc import Callable

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.inputs.target import Target
from scalelab.reading.logs.rates import own_rates
from scalelab.reading.tables.names import goal_of, meaning_as, meaning_of
from scalelab.session.run import Run

Import = Callable[..., Run]
EPOCH = 50_000
PLAIN = "gpus,nodes,batch_per_gpu,{}\n"


@pytest.mark.parametrize(
    ("name", "column", "factor"),
    [
        ("step_ms", "step_time_s", 1e-3),
        ("step_s", "step_time_s", 1.0),
        ("time_to_75_s", "time_to_target_s", 1.0),
        ("Time to 80% accuracy (min)", "time_to_target_s", 60.0),
        ("steps_to_80", "steps_to_target", 1.0),
        ("instances", "num_nodes", 1.0),
    ],
)
def test_names_are_read_with_their_units(name: str, column: str, factor: float) -> None:
    meaning = meaning_of(name)
    assert meaning is not None
    assert (meaning.column, meaning.factor) == (column, factor)
    assert not meaning.is_step_rate


def test_a_step_per_second_is_no_second_per_step() -> None:
    meaning = meaning_of("step/s")
    assert meaning is not None
    assert meaning.is_step_rate


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("epochs_to_75", "target >= 75"),
        ("epochs to 80%", "accuracy >= 80"),
        ("time_to_val_acc_0.75_h", "val_acc >= 0.75"),
        ("time until loss 2.5 (min)", "loss <= 2.5"),
    ],
)
def test_a_name_tells_the_target(name: str, target: str) -> None:
    found = goal_of(name)
    assert found is not None
    assert found[1] == Target.parse(target)


@pytest.mark.parametrize("name", ["tokens_to_5", "time_per_step_ms", "epochs_to_train"])
def test_other_names_tell_none(name: str) -> None:
    assert goal_of(name) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "column", "unit"),
    [
        ("samples_to_target", "epochs_to_75", "samples_to_target", "epochs"),
        ("samples_to_target", "training epochs", "samples_to_target", "epochs"),
        ("samples_to_target", "n_iterations", "steps_to_target", ""),
        ("time_to_target_s", "training_time_min", "time_to_target_s", "min"),
        ("step_time_s", "ms_each", "step_time_s", "ms"),
        ("step_time_s", "min_step", "step_time_s", ""),
    ],
)
def test_units_count_in_names_that_are_mapped(
    ours: str, theirs: str, column: str, unit: str
) -> None:
    meaning = meaning_as(ours, theirs)
    assert meaning is not None
    assert (meaning.column, meaning.unit) == (column, unit)


def test_epochs_that_are_called_samples_are_epochs(run_of: Import) -> None:
    text = PLAIN.format("time_to_75_s,epochs_to_75") + "1,1,64,1000,10\n2,1,64,600,11\n"
    mapped = {"samples_to_target": "epochs_to_75"}
    with refused("epoch_unknown"):
        run_of(text, column=mapped)
    run = run_of(text, column=mapped, samples_per_epoch=EPOCH)
    assert run.observations["samples_to_target"].tolist() == [10 * EPOCH, 11 * EPOCH]


def test_an_epoch_that_nothing_uses_is_refused(run_of: Import) -> None:
    text = PLAIN.format("step_ms") + "1,1,64,100\n2,1,64,110\n"
    with refused("no_epochs"):
        run_of(text, samples_per_epoch=EPOCH)


def test_a_target_reached_within_one_batch_is_doubted(run_of: Import) -> None:
    text = PLAIN.format("time_to_target_s,samples_to_target") + "1,1,64,1000,40\n"
    with pytest.raises(SpecError, match="=40 in line 2 is reached within one global"):
        run_of(text)
    assert len(run_of(text, accept_doubts=True).observations) == 1


FRAMEWORKS = """\
framework,gpus,instances,batch_per_gpu,epochs_to_75,time_to_75_s,epochs_to_80,time_to_80_s
horovod,1,1,128,9,535,16,951
horovod,8,2,128,17,179,31,326
horovod,12,3,128,22,199,not reached,not reached
keras,1,1,128,10,660,,
"""


def test_a_row_with_two_targets_is_two_trainings(run_of: Import) -> None:
    run = run_of(FRAMEWORKS, samples_per_epoch=EPOCH)
    rows = run.observations
    assert rows["target_value"].tolist() == [75, 80, 75, 80, 75, 80, 75]
    assert set(rows["target_metric"]) == {"target"}
    assert rows["num_nodes"].tolist() == [1, 1, 2, 2, 3, 3, 1]
    missed = rows.iloc[5]
    assert missed["outcome"] == "target_not_reached"
    assert not missed["reached_target"]
    assert missed["num_samples"] == 31 * EPOCH
    said = " ".join(run.import_notes)
    assert "target >= 75, target >= 80. Ask for one of them with --target" in said
    assert "1 row did not reach the target. How long they ran is not said" in said


def test_a_run_that_missed_is_as_long_as_those_of_its_workload(run_of: Import) -> None:
    text = (
        "model,gpus,nodes,global_batch,time_to_75_s,epochs_to_75\n"
        "small,1,1,64,10,5\nsmall,2,1,128,never,never\nlarge,1,1,64,900,300\n"
    )
    rows = run_of(text, samples_per_epoch=EPOCH).observations
    assert rows["num_samples"].iloc[1] == 5 * EPOCH


def test_how_long_a_training_ran_that_missed_can_be_said(run_of: Import) -> None:
    ran = {"num_samples": 40 * EPOCH}
    rows = run_of(FRAMEWORKS, samples_per_epoch=EPOCH, constant=ran).observations
    assert rows.iloc[5]["num_samples"] == 40 * EPOCH


def test_a_declared_node_keeps_its_size(run_of: Import) -> None:
    text = "gpus,batch_per_gpu,step_ms\n1,32,100\n2,32,105\n4,32,110\n"
    run = run_of(text, constant={"gpus_per_node": 8})
    assert run.observations["gpus_per_node"].tolist() == [1, 2, 4]
    assert set(run.observations["devices_of_node"]) == {8}
    answer = run.recommend(job={"samples": 10**6}, gpus=[8], max_batch=256)
    (row,) = (row for row in answer.rows if row.world_size == 8)
    assert row.allocation == "1x8"
    assert row.basis == "extrapolated"


def test_a_table_of_one_node_asks_for_the_link(run_of: Import) -> None:
    text = "gpus,nodes,batch_per_gpu,step_ms\n1,1,32,100\n2,1,32,105\n4,1,32,110\n"
    run = run_of(text)
    assert "say --between-nodes 200Gbit/s with the question" in " ".join(
        run.import_notes
    )
    question = {"job": {"samples": 10**6}, "gpus": [8], "max_batch": 256}
    answer = run.recommend(**question)
    (fact,) = (fact for fact in answer.facts if fact.kind == "link_unknown")
    told = run.recommend(**question, between_nodes="200Gbit/s")
    assert "link_unknown" not in {fact.kind for fact in told.facts}
    (row,) = (row for row in told.rows if row.world_size == 8)
    now = fact.values["hi_s"] / fact.values["lo_s"]
    assert row.time_s.hi / row.time_s.lo < now


def test_final_metrics_of_a_table_may_rule_ways_out(run_of: Import) -> None:
    text = (
        "parallelism,gpus,nodes,batch_per_gpu,step_ms,accuracy\n"
        "ddp,1,1,128,100,0.91\nddp,2,1,64,55,0.909\nfsdp,2,1,64,50,0.86\n"
        "fsdp,1,1,128,100,0.91\n"
    )
    run = run_of(text, column={"final_metric": "accuracy"})
    answer = run.recommend(job={"samples": 10**6}, max_gap=0.01, max_time="1h")
    assert answer.chosen.settings == {"parallelism": "ddp"}
    assert "ruled_out" in {fact.kind for fact in answer.facts}


def test_a_worker_may_be_a_node_in_a_table() -> None:
    """Its throughput is none of a device, though a worker in a log is a rank."""
    of_device = meaning_of("images/s/GPU")
    assert of_device is not None
    assert of_device.is_per_device
    assert meaning_of("images/s/worker") is None
    (rate,) = own_rates("step 3 | 12.5 images/s/worker")
    assert rate.of_all_ranks is False
