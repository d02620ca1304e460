"""Tables of what trainings to a target took, as papers and MLPerf publish them."""

from collections.abc import Callable
from typing import Any

import pytest

from scalelab.errors import FitError, SpecError
from scalelab.session import answer_text
from scalelab.session.run import Run

Import = Callable[..., Run]
TIMES = """\
benchmark,gpu_type,gpus,nodes,global_batch,Time to train (min),epochs
bert,A100,8,1,512,40.0,2.0
bert,A100,16,2,1024,22.0,2.2
bert,A100,64,8,2048,7.0,2.6
"""
OTHERS = "bert,,,,256,,1.9\nbert,,,,4096,,3.4\n"
EPOCH = 100_000


def test_times_and_epochs_are_trainings_to_a_target(run_of: Import) -> None:
    run = run_of(TIMES, samples_per_epoch=EPOCH)
    rows = run.observations
    assert rows["time_to_target_s"].tolist() == [2400.0, 1320.0, 420.0]
    assert rows["samples_to_target"].tolist() == [200_000, 220_000, 260_000]
    assert rows["step_time_s"].tolist() == pytest.approx(
        [2400 * 512 / 200_000, 1320 * 1024 / 220_000, 420 * 2048 / 260_000]
    )
    assert str(run.job) == "until target_reached >= 1"
    said = " ".join(run.import_notes)
    assert "3 rows tell how long training takes to a target: target_reached >= 1." in (
        said
    )
    assert "time_to_target_s from 'Time to train (min)' (in min)" in said


def test_the_answer_is_the_time_to_the_target(run_of: Import) -> None:
    answer = run_of(TIMES, samples_per_epoch=EPOCH).recommend(max_time="10min")
    by_size = {row.world_size: row for row in answer.rows}
    for size, minutes in ((8, 40), (16, 22), (64, 7)):
        assert by_size[size].time_s.lo < 60 * minutes < by_size[size].time_s.hi
    text = answer_text(answer, 100, explain=True)
    assert "target_reached >= 1" in text
    assert "Times are of whole runs to the target, whatever those contain" in text
    assert "(of training steps)" not in text


@pytest.mark.slow
def test_a_named_target_is_the_one_that_is_asked_for(run_of: Import) -> None:
    named = {"target_metric": "acc", "metric_mode": "max", "target_value": 0.7123456}
    run = run_of(TIMES, samples_per_epoch=EPOCH, constant=named)
    assert run.job is not None
    assert run.job.model_dump()["target"] == "acc >= 0.712346"
    assert run.recommend(target="acc >= 0.7123456").rows == run.recommend().rows
    with pytest.raises(FitError, match="No convergence trial evaluated loss"):
        run.recommend(target="loss <= 2")


def test_rows_of_batches_alone_inform_the_samples(run_of: Import) -> None:
    run = run_of(TIMES + OTHERS, samples_per_epoch=EPOCH)
    assert run.observations["kind"].tolist() == ["imported"] * 3 + ["convergence"] * 2
    assert "5 rows tell how long training takes to a target, 2 without its time" in (
        " ".join(run.import_notes)
    )
    answer = run.recommend(gpus=[128], batch=4096, select={"device_name": "A100"})
    (row,) = (row for row in answer.rows if row.world_size == 128)
    assert row.samples.value == pytest.approx(340_000, rel=0.05)


def test_a_table_of_batches_alone_is_imported_and_cannot_answer(
    run_of: Import,
) -> None:
    run = run_of("benchmark,global_batch,samples\nbert,256,1e5\nbert,512,120000.5\n")
    assert run.observations["samples_to_target"].tolist() == [100_000, 120_000]
    assert "nothing can be recommended" in " ".join(run.import_doubts)
    with pytest.raises(FitError, match="usable step time"):
        run.recommend()


def test_steps_to_a_target_count_batches(run_of: Import) -> None:
    run = run_of("batch_size_global,Steps to result\n64,1000\n128,600\n")
    assert run.observations["samples_to_target"].tolist() == [64_000, 76_800]


@pytest.mark.slow
def test_devices_that_do_not_divide_the_batch_share_copies(run_of: Import) -> None:
    text = TIMES.replace("64,8,2048", "72,9,2016")
    run = run_of(text, samples_per_epoch=EPOCH)
    last = run.observations.iloc[-1]
    assert (last["data_parallel_size"], last["local_batch_size"]) == (72, 28)
    run = run_of(
        text.replace("72,9,2016", "72,9,2048"),
        samples_per_epoch=EPOCH,
        directory=run.directory.with_name("other"),
    )
    last = run.observations.iloc[-1]
    assert (last["data_parallel_size"], last["local_batch_size"]) == (8, 256)
    answer = run.recommend(gpus=[144], batch=2048)
    assert 144 in [row.world_size for row in answer.rows]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("", ""), {}, "'epochs' counts epochs, and nothing says how many samples"),
        ((",epochs", ",x"), {}, "Beside the time of a training to its target, how"),
        (
            (
                "epochs\n",
                "epochs,images/s\n",
                "2.0\n",
                "2.0,5000\n",
                "2.2\n",
                "2.2,9\n",
            ),
            {"samples_per_epoch": EPOCH},
            "line 2: time_to_target_s=2400 at 5000 samples/s is 1.2e[+]07 samples, but",
        ),
        ((",16,2", ",,"), {"samples_per_epoch": EPOCH}, "line 3: num_nodes is empty"),
        (
            ("Time to train (min)", "Time to train"),
            {"samples_per_epoch": EPOCH},
            "lacks columns that a measurement needs: step_time_s",
        ),
    ],
)
def test_what_is_missing_is_named(
    run_of: Import, change: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    text = TIMES.replace("2.6\n", "2.6,9\n") if len(change) > 2 else TIMES
    for old, new in zip(change[::2], change[1::2], strict=True):
        text = text.replace(old, new)
    with pytest.raises(SpecError, match=message):
        run_of(text, **options)


def test_epochs_beside_a_speed_are_not_read(run_of: Import) -> None:
    run = run_of("gpus,nodes,local_batch,step_time_s,epochs\n8,1,4,0.5,90\n")
    assert run.observations["samples_to_target"].isna().all()
    assert run.job is None


@pytest.mark.slow
def test_a_row_without_a_time_is_no_training(run_of: Import) -> None:
    run = run_of(TIMES.replace("7.0,2.6", ",2.6"), samples_per_epoch=EPOCH)
    assert run.observations["kind"].tolist()[-1] == "convergence"
    assert run.recommend().rows


@pytest.mark.slow
def test_one_series_of_several_is_asked_by_itself(run_of: Import) -> None:
    header, *rows = TIMES.splitlines()
    tpu = "bert,TPU,256,1,4096,3.0,3.4"
    slow = [row.replace(".0,2", "9.0,2") for row in rows]
    lines = [f"{header},org", *(f"{row},x" for row in rows), f"{tpu},x"]
    text = "\n".join([*lines, *(f"{row},y" for row in slow)])
    run = run_of(text, samples_per_epoch=EPOCH, axis=["org"], accept_doubts=True)
    chosen = {"device_name": "A100", "org": "x"}
    answer = run.recommend(select=chosen, max_time="30min")
    alone = run_of(
        "\n".join(lines[:4]),
        samples_per_epoch=EPOCH,
        axis=["org"],
        directory=run.directory.with_name("alone"),
    ).recommend(max_time="30min")
    by_size = [{row.world_size: row for row in each.rows} for each in (answer, alone)]
    assert [row.num_nodes for row in answer.rows] == [
        -(-row.world_size // 8) for row in answer.rows
    ]
    assert "Times are of whole runs" in answer_text(answer, 100, explain=True)
    for size in (8, 64):
        one, other = (rows[size].time_s.value for rows in by_size)
        assert one == pytest.approx(other, rel=0.05)
