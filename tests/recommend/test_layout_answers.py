"""Answers about layouts of a command, from rows as a sweep records them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from measured_runs import completed, measured_run
from sentences import Golden

from scalelab.experiment.trial import Trial
from scalelab.inputs.layout import Layout
from scalelab.laws.rows import configurations, curve_columns
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.answer.sentences import sentences, texts
from scalelab.recommend.answer.text import allocations
from scalelab.recommend.question.batches import AskedBatch, BatchRule
from scalelab.recommend.question.candidates import candidates, why_unshared
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run, load

EXPERIMENT = """\
name: split
command: >-
  python train.py --tp {tensor_parallel_size} --pp {pipeline_parallel_size}
  --micro {micro_batch_size} --batch {global_batch_size} --shards {data_shard_size}
measure: {repeats: 3, canary_every: 0}
job: {samples: 1000000, sequence_length: 1024, flops_per_sample: 1.0e+12,
  device_peak_flops: 1.0e+14}
gpus: [2, 4, 8, 16]
local_batch_size: [2, 4]
global_batch_size: 64
layout: {tensor: [1, 2, 4], pipeline: [1, 2]}
site: {name: hpc, scheduler: slurm, device_type: cuda, gpus_per_node: 4}
"""


def step_time_s(world_size: int, layout: Layout, local: int, total: int) -> float:
    """Return passes, the bubble of the pipeline, and exchanges of two kinds."""
    parallel = layout.data_parallel_size(world_size)
    passes = total // (local * parallel)
    share = 0.05 * local / (layout.tensor * layout.pipeline)
    exchange = 0.4 * (parallel - 1) / parallel / (layout.tensor * layout.pipeline)
    between = 4 if world_size > 4 else 1
    pass_s = share + 0.002 * (layout.tensor - 1)
    return (passes + layout.pipeline - 1) * pass_s + exchange * between


def measured(trial: Trial) -> AttemptResult:
    assert trial.layout is not None
    total = trial.global_batch_size
    local = trial.local_batch_size
    step = step_time_s(trial.world_size, trial.layout, local, total)
    step *= 1 + 0.004 * (trial.repeat - 1)
    return completed(
        trial,
        step_time_s=step,
        step_time_lo_s=0.99 * step,
        step_time_hi_s=1.01 * step,
        throughput_samples_per_s=total / step,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("layouts") / "run"
    return load(measured_run(directory, EXPERIMENT, measured).directory)


@pytest.fixture(scope="module")
def answer(run: Run) -> Recommendation:
    return run.recommend()


def layout_of(row: OutlookRow) -> Layout:
    named = {**row.settings, "context_parallel_size": 1, "expert_parallel_size": 1}
    layout = Layout.of_degrees({**named, "data_replicate_size": 1})
    assert layout is not None
    return layout


def test_degrees_are_recorded_as_settings_and_tell_curves_apart(run: Run) -> None:
    rows = run.observations
    names = [name for name in curve_columns(rows) if name.startswith("options.")]
    assert names == [
        "options.context_parallel_size",
        "options.data_replicate_size",
        "options.expert_parallel_size",
        "options.pipeline_parallel_size",
        "options.tensor_parallel_size",
    ]
    replicas = rows["options.tensor_parallel_size"]
    replicas = replicas * rows["options.pipeline_parallel_size"]
    assert (rows["data_parallel_size"] * replicas == rows["world_size"]).all()
    passes = rows["gradient_accumulation_steps"]
    total = rows["local_batch_size"] * rows["data_parallel_size"] * passes
    assert (total == rows["global_batch_size"]).all()
    assert rows["local_batch_size"].max() == 4


@pytest.mark.slow
def test_each_row_names_the_fastest_layout_and_its_batch(
    answer: Recommendation,
) -> None:
    rows = {row.world_size: row for row in answer.rows if row.basis == "measured"}
    assert set(rows) == {2, 4, 8, 16}
    for size, row in rows.items():
        layout, batch = layout_of(row), row.batch
        assert batch.data_parallel_size == layout.data_parallel_size(size)
        passes = batch.gradient_accumulation_steps
        assert batch.global_batch_size == 64
        assert batch.local_batch_size * batch.data_parallel_size * passes == 64
        fastest = min(
            step_time_s(size, other, local, 64)
            for tensor in (1, 2, 4)
            for pipeline in (1, 2)
            for local in (2, 4)
            if size % (tensor * pipeline) == 0
            for other in [Layout(tensor=tensor, pipeline=pipeline)]
            if 64 % (local * other.data_parallel_size(size)) == 0
        )
        assert row.step_time_s.value == pytest.approx(fastest, rel=0.02)
        speed = row.throughput_samples_per_s.value
        assert speed == pytest.approx(64 / fastest, rel=0.02)
        assert row.throughput_tokens_per_s is not None
        assert row.throughput_tokens_per_s.value == pytest.approx(1024 * speed)
        assert row.flops_utilization is not None
        assert row.flops_utilization.value == pytest.approx(speed / (100 * size))
    assert len({layout_of(row) for row in rows.values()}) > 1


@pytest.mark.slow
def test_efficiency_is_against_the_best_layout_of_the_fewest_devices(
    answer: Recommendation,
) -> None:
    rows = {row.world_size: row for row in answer.rows}
    assert rows[2].is_baseline
    for size in (4, 8, 16):
        ideal = 2 * rows[2].step_time_s.value / (size * rows[size].step_time_s.value)
        assert rows[size].scaling_efficiency.value == pytest.approx(ideal)


@pytest.mark.slow
def test_what_was_not_measured_is_divided_by_its_layout(run: Run) -> None:
    found = run.recommend(gpus=[32, 64])
    for row in found.rows:
        layout, batch = layout_of(row), row.batch
        assert batch.data_parallel_size == layout.data_parallel_size(row.world_size)
    assert {32, 64} <= {row.world_size for row in found.rows}


@pytest.mark.slow
def test_the_table_and_the_notes(answer: Recommendation) -> None:
    columns = allocations(answer)
    assert columns["layout"] == [
        "layout",
        *(
            f"tp{row.settings['tensor_parallel_size']} "
            f"pp{row.settings['pipeline_parallel_size']}"
            for row in answer.rows
        ),
    ]
    assert columns["tokens"][0] == "fitted tokens/s"
    assert columns["utilization"][0] == "MFU"
    # A layout says who computes a step, not what it learns.
    assert not any("parallel_size" in note for note in answer.notes)


@pytest.mark.slow
def test_the_job_script_holds_the_recommended_layout(
    run: Run, answer: Recommendation
) -> None:
    (command,) = [
        line for line in run.job_script(answer).splitlines() if "train.py" in line
    ]
    chosen, batch = answer.chosen, answer.chosen.batch
    assert command.endswith(
        f"train.py --tp {chosen.settings['tensor_parallel_size']} "
        f"--pp {chosen.settings['pipeline_parallel_size']} "
        f"--micro {batch.local_batch_size} --batch 64 "
        f"--shards {batch.data_parallel_size}"
    )


@pytest.mark.repetition
@pytest.mark.slow
def test_the_next_trial_names_its_layout(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("[2, 4, 8, 16]", "[2, 4]")
    run = load(measured_run(tmp_path / "run", text, measured).directory)
    answer = run.recommend(max_time="6h", accept_unmeasured=True)
    proposed = answer.next_trial
    assert proposed is not None
    row = next(r for r in answer.rows if r.world_size == proposed.world_size)
    assert proposed.settings == row.settings
    (said,) = texts(sentences(answer), "next_trial")
    assert f", tensor_parallel_size {row.settings['tensor_parallel_size']}, " in said


def curve(layout: Layout, rows: list[tuple[int, int]]) -> pd.DataFrame:
    """Return a measured curve: world sizes and nodes, with local batch 8."""
    frame = pd.DataFrame(rows, columns=["world_size", "num_nodes"])
    sizes = [layout.data_parallel_size(size) for size, _ in rows]
    return configurations(frame.assign(local_batch_size=8, data_parallel_size=sizes))


@pytest.mark.parametrize(
    ("layout", "rows", "where", "fits"),
    [
        (Layout(tensor=2), [(2, 1), (4, 1)], [(3, 1), (8, 2)], [(8, 2)]),
        # 6 ranks are 3 replicas, which no group of 2 experts divides.
        (Layout(tensor=2, expert=2), [(4, 1)], [(6, 1), (8, 2)], [(8, 2)]),
        (Layout(replicate=2), [(4, 1)], [(5, 1), (6, 1)], [(6, 1)]),
        # 4 of 12 devices on 2 nodes of 6: a layer would be divided across nodes,
        (Layout(tensor=4), [(4, 1), (8, 1)], [(12, 2), (16, 2)], [(16, 2)]),
        # as it was measured here.
        (Layout(tensor=4), [(4, 1), (12, 2)], [(12, 2), (16, 2)], [(12, 2), (16, 2)]),
    ],
)
def test_only_ranks_that_a_layout_divides_are_asked_about(
    layout: Layout,
    rows: list[tuple[int, int]],
    where: list[tuple[int, int]],
    fits: list[tuple[int, int]],
) -> None:
    frame = curve(layout, rows)
    key = tuple((f"options.{name}", size) for name, size in layout.degrees.items())
    rule = BatchRule.of(frame, AskedBatch(largest=512), None)
    table = candidates({key: frame}, where, rule)
    pairs = table[["world_size", "num_nodes"]].drop_duplicates()
    assert [tuple(pair) for pair in pairs.to_numpy().tolist()] == fits


def test_devices_that_some_layout_divides_are_not_said_to_be_undivided(
    golden: Golden,
) -> None:
    curves = [curve(Layout(tensor=size), [(8, 1)]) for size in (2, 4)]
    assert list(why_unshared(curves, [6, 12])) == []
    (said,) = why_unshared(curves, [6, 7, 9])
    golden(in_words(said, "GPU"))
