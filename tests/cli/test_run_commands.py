"""status, report and import: what looks at a run, or makes one of a table."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from measured_runs import EMULATED, completed, failed, measured_run
from sentences import Golden

from scalelab.cli.recommend_command import print_answer, width
from scalelab.errors import NotIdentifiableError
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.records.control.events import (
    EventLog,
    NodeLost,
    NodeUp,
    Stopping,
    SweepEnded,
    SweepStarted,
    Waiting,
)

TABLE = "world_size,num_nodes,local_batch_size,step_time_s\n" + "".join(
    f"{size},1,32,{0.1 + 0.02 * size}\n" for size in (1, 2, 4, 8)
)


def test_status_of_a_run_that_is_done(
    scalelab: Callable[..., Any], tmp_path: Path, golden: Golden
) -> None:
    run = measured_run(tmp_path / "run").directory
    ended = scalelab("status", run)
    assert (ended.code, ended.err) == (0, "")
    golden(*ended.out.splitlines())


def test_status_gives_both_figures_of_a_trial_whose_rate_disagrees(
    scalelab: Callable[..., Any], tmp_path: Path, golden: Golden
) -> None:
    def ending(trial: Trial) -> AttemptResult:
        result = completed(trial)
        step_s = result.measurements["step_time_s"]
        own = {"reported_step_time_s": 16 * step_s, "validity": ["rate_disagrees"]}
        return replace(result, measurements={**result.measurements, **own})

    store = measured_run(tmp_path / "run", ending=ending)
    golden(scalelab("status", store.directory).out)


def but_the_driver(out: str) -> list[str]:
    """Return the lines of a status without the process of this test."""
    return [line for line in out.splitlines() if not line.startswith("Driver: ")]


def test_status_names_what_is_missing_and_why(
    scalelab: Callable[..., Any], tmp_path: Path, golden: Golden
) -> None:
    def ending(trial: Trial) -> AttemptResult:
        if trial.world_size == 1:
            return failed(trial)
        if trial.local_batch_size == 4:
            return AttemptResult(outcome=Outcome.NODE_FAIL, reason="Lost.")
        return completed(trial)

    store = measured_run(tmp_path / "run", ending=ending)
    with store.lease():
        out = scalelab("status", store.directory).out
    assert "       4  failed\n       2  completed\n" in out
    golden(*but_the_driver(out))
    assert out.count(": failed. Rank 0 raised ValueError: no such file.\n") == 4
    assert "Driver: none" not in out
    assert f"Driver: process {os.getpid()}" in out


def test_status_says_what_the_driver_reported_last(
    scalelab: Callable[..., Any], tmp_path: Path, golden: Golden
) -> None:
    store = measured_run(tmp_path / "run")
    with closing(EventLog(store.directory)) as log:
        log.append(SweepStarted(host="h", pid=1, frameworks=()))
        log.append(NodeUp(node="a", host="h", num_devices=2))
        log.append(NodeUp(node="b", host="h", num_devices=2))
        log.append(NodeLost(node="b"))
        log.append(Waiting(reason="1 trial waits for nodes."))
        with store.lease():
            golden(*but_the_driver(scalelab("status", store.directory).out))
            log.append(Stopping(reason="the budget is spent", num_running=1))
            golden(*but_the_driver(scalelab("status", store.directory).out))
        golden(scalelab("status", store.directory).out)
        log.append(SweepEnded(stopped="the budget is spent"))
    golden(scalelab("status", store.directory).out)


@pytest.mark.slow
def test_a_run_whose_events_cannot_be_read_is_answered_and_says_so(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    run = measured_run(here / "runs" / "small").directory
    os.mkfifo(run / "events.jsonl")
    asked = scalelab("recommend", run)
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.startswith("Use 2 ")
    status = scalelab("status", run)
    assert status.code == 0
    golden(status.out)
    assert scalelab("report", run).code == 0


def test_status_names_attempts_that_a_dead_driver_left(
    scalelab: Callable[..., Any], tmp_path: Path
) -> None:
    store = measured_run(tmp_path / "run")
    ledger = store.directory / "ledger.jsonl"
    *earlier, _ = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(earlier))
    last = store.rows()[-1]["trial_id"]
    assert "begun, not ended" not in scalelab("status", store.directory).out
    (store.directory / "trials" / last / "001" / "result.json").unlink()
    out = scalelab("status", store.directory).out
    assert f"begun, not ended: {last}, attempt 1\n" in out
    assert "7  completed" in out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gpus: [1, 2]", "gpus: [1, 2]\nsite: elsewhere #"),
        ("local_batch_size: [4, 8]", "local_batch_size: auto"),
    ],
)
def test_status_does_not_count_what_it_cannot_know(
    scalelab: Callable[..., Any], here: Path, old: str, new: str
) -> None:
    text = EMULATED.replace(old, new)
    if "elsewhere" in new:
        text = text.replace("site: {device_type: cpu, gpus_per_node: 2}\n", "")
    store = measured_run(here / "run", EMULATED)
    (store.directory / "experiments" / "0001.yaml").write_text(text)
    ended = scalelab("status", "run")
    assert ended.code == 0
    assert "Not run yet" not in ended.out


@pytest.mark.slow
def test_the_report_lands_where_it_is_wanted(
    scalelab: Callable[..., Any], here: Path
) -> None:
    run = measured_run(here / "runs" / "small").directory
    assert scalelab("report", "runs/small").out == f"{run}/report.html\n"
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    ended = scalelab("report", "runs/small", "-o", "mine.html")
    assert (ended.code, ended.out) == (0, "mine.html\n")
    assert Path("mine.html").is_file()


@pytest.mark.slow
def test_a_report_that_cannot_be_written_is_refused(scalelab: Any, here: Path) -> None:
    measured_run(here / "run")
    scalelab("report", "run", "-o", "absent/mine.html").assert_refused()
    assert not Path("absent").exists()


@pytest.mark.slow
def test_a_table_becomes_a_run(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    Path("table.csv").write_text(TABLE)
    ended = scalelab("import", "table.csv", "--constant", "precision=bf16")
    assert (ended.code, ended.err) == (0, "")
    golden(ended.out)
    again = scalelab("import", "table.csv")
    again.assert_refused()
    assert "exists already" in again.err
    status = scalelab("status", "runs/table").out
    assert "4 trials ended" in status
    assert "Not run yet" not in status
    script = scalelab("recommend", "runs/table", "--sbatch", "--samples", 1000)
    script.assert_refused()
    golden(script.err)


def test_one_row_is_one_observation(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    Path("table.csv").write_text("".join(TABLE.splitlines(keepends=True)[:2]))
    ended = scalelab("import", "table.csv")
    golden(ended.out)


TWO_WORKLOADS = "model,gpus,nodes,local_batch,step_time_s\n" + "".join(
    f"{model},{count},1,32,{base + 0.005 * count}\n"
    for model, base in {"vit": 0.1, "bert": 0.3}.items()
    for count in (1, 2, 4, 8)
)


def test_an_import_says_what_it_read(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    Path("table.csv").write_text(
        TWO_WORKLOADS.replace(",step_time_s", ",Step time (s)") + "bert,8,1,64,N/A\n"
    )
    ended = scalelab("import", "table.csv")
    golden(*ended.out.splitlines()[1:])


@pytest.mark.slow
def test_doubts_follow_a_table_into_its_answer(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    rows = "".join(f"{n},{32 * n},{100 + n}\n" for n in (1, 2, 4, 8))
    Path("table.csv").write_text(f"gpus,global_batch,throughput\n{rows}")
    arguments = ("import", "table.csv", "--constant", "num_nodes=1")
    refused = scalelab(*arguments)
    refused.assert_refused()
    golden(refused.err)
    accepted = scalelab(*arguments, "--accept-doubts")
    assert accepted.code == 0
    golden(accepted.err)
    asked = ("recommend", "runs/table", "--samples", 1_000_000)
    answer = json.loads(scalelab(*asked, "--json").out)
    (doubted,) = (f for f in answer["facts"] if f["kind"] == "import_doubted")
    assert "throughput" in doubted["doubt"]


@pytest.mark.slow
def test_a_wide_table_is_melted(scalelab: Callable[..., Any], here: Path) -> None:
    Path("table.csv").write_text(
        "Batch per GPU,1 GPU,2 GPUs,8 GPUs,16 GPUs\n32,300,590,2300,4400\n"
    )
    melt = ("--melt", "world_size=throughput_samples_per_s")
    ended = scalelab("import", "table.csv", *melt, "--constant", "gpus_per_node=8")
    assert ended.code == 0, ended.err
    answer = scalelab("recommend", "runs/table", "--samples", 1_000_000, "--json")
    sizes = {row["world_size"]: row for row in json.loads(answer.out)["rows"]}
    assert (sizes[8]["num_nodes"], sizes[16]["num_nodes"]) == (1, 2)


@pytest.mark.slow
def test_a_report_takes_the_question_of_an_answer(
    scalelab: Callable[..., Any], here: Path
) -> None:
    Path("table.csv").write_text(TWO_WORKLOADS)
    scalelab("import", "table.csv")
    question = ("--select", "workload=bert", "--samples", 1_000_000)
    ended = scalelab("report", "runs/table", *question, "--max-time", "2h")
    assert ended.code == 0, ended.err
    page = Path("runs/table/report.html").read_text()
    assert "2 h" in page
    assert ">340 ms</td>" in page  # bert on 8 devices
    assert ">140 ms</td>" not in page  # vit


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (("--select", "workload=gpt"), "No observation has workload=gpt"),
        (("--max-time", "soon"), "soon"),
        (("--epochs", "3"), "--samples-per-epoch"),
    ],
)
def test_a_report_on_a_wrong_question_is_refused(
    scalelab: Callable[..., Any], here: Path, question: tuple[str, ...], message: str
) -> None:
    Path("table.csv").write_text(TWO_WORKLOADS)
    scalelab("import", "table.csv")
    ended = scalelab("report", "runs/table", *question)
    ended.assert_refused()
    assert message in ended.err
    assert not Path("runs/table/report.html").exists()


@pytest.mark.parametrize(
    "option", ["step_time_s", "=x", "a=b --column a=c", "", "nothing=gpus"]
)
def test_columns_are_named_in_pairs(
    scalelab: Callable[..., Any], here: Path, option: str
) -> None:
    Path("table.csv").write_text(TABLE)
    arguments = ["--column", *option.split(" ")]
    scalelab("import", "table.csv", *arguments).assert_refused()
    assert not Path("runs").exists()


def test_without_an_answer_the_reason_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    print_answer(NotIdentifiableError("x", "Measure 2 nodes."))
    captured = capsys.readouterr()
    assert captured.out == ""
    golden(captured.err)


@pytest.mark.parametrize(
    ("is_terminal", "columns", "expected"),
    [(False, 40, None), (True, 40, 40), (True, 300, 300)],
)
def test_the_answer_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    columns: int,
    expected: int | None,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert width() == expected
