"""The scaling table says what the answer says, what was measured and what was not."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from measured_runs import EMULATED, measured_run
from sentences import Golden

import scalelab
from scalelab.report.scaling_table import ScalingTable
from scalelab.session import Run

FOUR_NODES = """\
name: scaled
workload: {name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}
measure: {long_trial: none, warmup_steps: 1, steps: 5, repeats: 3}
job: {epochs: 90, samples_per_epoch: 100000}
gpus: [1, 2, 4, 8]
global_batch_size: [32, 64]
site: {name: hpc, device_type: cpu, nodes: 2, gpus_per_node: 4}
"""
SAME = ("time_s", "gpu_hours", "step_time_s", "throughput_samples_per_s")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "scaled"
    return scalelab.load(measured_run(directory, FOUR_NODES).directory)


@pytest.fixture(scope="module")
def table(run: Run) -> ScalingTable:
    return run.scaling_table(runs=10)


def test_strong_scaling_is_the_answer_at_that_batch(
    run: Run, table: ScalingTable
) -> None:
    frame = table.to_frame()
    strong = frame[frame["scaling"] == "strong"].set_index("world_size")
    (batch,) = strong["global_batch_size"].unique()
    answer = run.recommend(batch=int(batch), gpus=strong.index.tolist())
    rows = {
        row["world_size"]: row
        for row in json.loads(json.dumps(answer.to_json()))["rows"]
    }
    assert strong.index.tolist() == [1, 2, 4, 8, 16, 32]
    for size, row in rows.items():
        for name in SAME:
            ends = [strong.loc[size, name + end] for end in ("", "_lo", "_hi")]
            assert ends == [row[name][end] for end in ("value", "lo", "hi")], name
        own = strong.loc[size, ["scaling_efficiency", "scaling_efficiency_hi"]].tolist()
        ends = [row["scaling_efficiency"], row["scaling_efficiency_hi"]]
        assert own == pytest.approx(ends)
        assert strong.loc[size, "basis"] == row["basis"]
        speedup = row["scaling_efficiency"] * size
        assert strong.loc[size, "speedup"] == pytest.approx(speedup)


def test_weak_scaling_keeps_the_batch_of_a_device(table: ScalingTable) -> None:
    frame = table.to_frame()
    weak = frame[frame["scaling"] == "weak"]
    assert weak["local_batch_size"].nunique() == 1
    assert weak["gradient_accumulation_steps"].unique().tolist() == [1]
    base = weak[weak["is_baseline"]].iloc[0]
    assert base["world_size"] == weak["world_size"].min()
    assert base["speedup"] == base["scaling_efficiency"] == 1
    rates = weak["throughput_samples_per_s"] / base["throughput_samples_per_s"]
    assert weak["speedup"].tolist() == pytest.approx(rates.tolist(), rel=0.02)


def test_what_was_measured_is_the_median_of_the_runs(
    run: Run, table: ScalingTable
) -> None:
    frame = table.to_frame()
    measured = frame[frame["num_runs"] > 0]
    assert set(measured["basis"]) == {"measured"}
    assert set(frame.loc[frame["num_runs"] == 0, "basis"]).isdisjoint({"measured"})
    keys = ["world_size", "local_batch_size", "global_batch_size"]
    runs = run.observations.groupby(keys)["step_time_s"]
    for row in measured.to_dict("records"):
        own = runs.get_group(tuple(row[name] for name in keys))
        assert row["num_runs"] == len(own)
        assert row["measured_step_time_s"] == own.median()
        assert row["measured_step_time_least_s"] == own.min()
        assert row["measured_step_time_most_s"] == own.max()


def test_text_and_markdown_say_what_the_frame_holds(
    table: ScalingTable, golden: Golden
) -> None:
    for form in ("md", "txt"):
        text = table.text(form)
        strong, weak = text.split("Weak scaling of emulated")
        for part, name in ((strong, "strong"), (weak, "weak")):
            assert part.index("Measured:") < part.index("Predicted:")
            assert f"{name} efficiency" in part
            golden(part)
        cells = [line for line in text.splitlines() if "not measured" in line]
        sizes = table.to_frame().query("basis == 'not measured here'")
        assert len(cells) == len(sizes)
    again = pd.read_csv(io.StringIO(table.text("csv")))
    same = table.to_frame().fillna(float("nan"))
    pd.testing.assert_frame_equal(again, same, check_dtype=False)
    golden.refusals([("unknown_format", lambda: table.text("html"))])


def test_the_hours_to_ask_for_are_the_upper_end_of_all_runs(
    run: Run, table: ScalingTable, golden: Golden
) -> None:
    hours = run.recommend().chosen.gpu_hours
    text = " ".join(table.text("txt").split())
    golden(text)
    assert f"{10 * hours.hi:.1f} " in text
    assert f"; {10 * hours.value:.1f} " in text
    assert "times leave out" in text.lower()


def test_of_one_device_count_there_is_no_scaling(
    tmp_path: Path, golden: Golden
) -> None:
    alone = EMULATED.replace("gpus: [1, 2]", "gpus: [2]")
    found = scalelab.load(measured_run(tmp_path / "run", alone).directory)
    text = found.scaling_table().text()
    golden(text)


def test_without_a_job_times_are_of_a_million_samples(tmp_path: Path) -> None:
    no_job = EMULATED.replace("job: {samples: 100000}\n", "")
    found = scalelab.load(measured_run(tmp_path / "run", no_job).directory)
    assert "the job (1,000,000 samples)" in " ".join(
        found.scaling_table().text().split()
    )
    assert "the job (500 samples)" in found.scaling_table(samples=500).text()


def test_of_several_devices_the_table_is_of_the_chosen(tmp_path: Path) -> None:
    rows = ["device,gpus,nodes,local_batch_size,step_time_s"]
    for device, step in (("A100", 0.1), ("V100", 0.3)):
        rows += [f"{device},{n},1,32,{step * (1 + 0.02 * n)}" for n in (1, 2, 4)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found = scalelab.import_table(tmp_path / "t.csv", tmp_path / "run")
    frame = found.scaling_table().to_frame()
    assert set(frame["device"]) == {"A100"}


@pytest.mark.parametrize("form", ["md", "txt", "csv"])
def test_the_command_prints_the_table(
    run: Run, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from scalelab.cli import main

    command: Callable[..., Any] = main.run
    assert command(["table", str(run.path), "--format", form, "--runs", "10"]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip() == run.scaling_table(runs=10).text(form).rstrip()


def test_wrong_options_are_refused(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    from scalelab.cli import main

    for option, message in (
        (("--format", "html"), "format='html' is unknown. Valid: md, txt, csv."),
        (("--runs", "0"), "--runs=0 must be at least 1."),
        (("--max-time", "4"), "'4' is not a duration"),
    ):
        assert main.run(["table", str(run.path), *option]) == 2
        assert message in capsys.readouterr().err
