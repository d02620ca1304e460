"""What a run, or a call from Python, refuses: each refusal by its code, once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_programs import FakePrograms
from measured_runs import COMMAND, EMULATED, Ending, completed, measured_run
from searched import RANGES, SEARCH
from sentences import Golden

import scalelab
from scalelab.experiment.trial import Trial
from scalelab.records.attempt import AttemptResult
from scalelab.running.sweep_end import SweepEnd
from scalelab.scheduling.summary import SweepSummary
from scalelab.session import export, import_table, load, obtain_data
from scalelab.session.comparison import compare_values
from scalelab.session.following import used_by, write_jobs_table
from scalelab.session.run import Run

TABLE = "gpus,step_time_s,local_batch_size\n1,0.1,8\n2,0.12,8\n4,0.15,8\n"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a SLURM that has two jobs; both are without a log of steps."""
    programs = FakePrograms(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(programs.folder))
    programs.says("sinfo")
    programs.says("scontrol", status=1)
    fields = "{0}|{0}|vit|COMPLETED|1|1|cpu=1|90|1000|1060|130|00:10:00|||{1}"
    jobs = [fields.format(job, tmp_path) for job in (11, 12)]
    programs.says("sacct", "\n".join(jobs).replace("|", "\x1f"))
    (tmp_path / "slurm-12.out").write_text("loading\n")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return load(measured_run(tmp_path / "runs" / "small").directory)


def table_with_answer() -> tuple[Run, Any]:
    Path("table.csv").write_text(TABLE)
    run = import_table("table.csv", "runs/table", constant={"num_nodes": 1})
    return run, run.recommend(samples=1e6)


def alone(trial: Trial) -> AttemptResult:
    """End a trial each of whose ranks trains a model of its own."""
    return completed(trial, ranks_witness="alone")


def swept(name: str, text: str, ending: Ending) -> Run:
    Path("runs/train.py").write_text("")
    return load(measured_run(Path("runs", name).absolute(), text, ending).directory)


def sweep(price: str = "") -> Run:
    """Sweep an experiment with a budget of money; its first trial fails."""
    site = f"gpus_per_node: 2{price}"
    Path("e.yaml").write_text(EMULATED.replace("gpus_per_node: 2", site))
    return scalelab.sweep("e.yaml", directory="runs/new", budget="20usd")


def end_early(asked: object, *, rate: object) -> SweepEnd:
    row = {"reason": "Rank 0 has seen no step"}
    summary = SweepSummary(unsound=(row,), stopped="it was unsound")
    return SweepEnd(summary=summary, is_interrupted=False, left_jobs=())


@pytest.mark.usefixtures("jobs")
def test_every_refusal_has_a_code_and_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("scalelab.running.execution.run_sweep", end_early)
    table, answer = table_with_answer()
    command = swept("trained", COMMAND, alone)
    searched = swept("searched", SEARCH + RANGES, completed)
    Path("job.log").write_text("")
    ask = run.recommend
    rows = [
        ("no_run", partial(getattr, scalelab.runs("nowhere"), "newest")),
        ("not_a_directory", partial(scalelab.Run, "runs/small")),
        ("not_a_path", partial(load, 5)),
        ("no_study", partial(getattr, run, "study")),
        ("answer_without_run", partial(getattr, replace(ask()), "figures")),
        ("share_of_hundred", partial(ask, confidence=90)),
        ("not_a_job", partial(ask, job="90 epochs")),
        ("job_said_twice", partial(ask, steps=100, job={"steps": 9})),
        ("unknown_argument", partial(ask, global_batch_size=64)),
        ("said_twice", partial(ask, max_time="4h", deadline="4h")),
        ("price_said_twice", partial(ask, price=2, price_per_gpu_hour_usd=2)),
        ("price_in_other_currency", partial(ask, price_per_gpu_hour_usd="2eur")),
        ("own_rows", partial(ask, learn_from="runs/small")),
        ("history_said_twice", partial(ask, learn_from="runs/table", no_history=True)),
        ("campaign_without_pool", partial(ask, runs=24)),
        ("script_of_table", partial(table.job_script, answer)),
        (
            "nothing_chosen",
            partial(command.job_script, command.recommend(max_time="1s")),
        ),
        ("no_setting", partial(compare_values, run, 3, {})),
        ("compared_at_same_batch", partial(compare_values, run, "world_size", {})),
        ("axis_does_not_vary", partial(compare_values, run, "zero_stage", {})),
        ("not_html", partial(run.report, "report.pdf")),
        ("no_run_to_export", partial(export, [], "rows.csv")),
        ("unknown_grouping", partial(export, [run], "rows.csv", per="day")),
        ("unknown_ending", partial(export, [run], "rows.xls")),
        ("unknown_data_set", partial(obtain_data, "mnist")),
        ("log_without_run", partial(used_by, "job.log")),
        ("neither_log_nor_job", partial(used_by, "job.lag")),
        ("unknown_job", partial(used_by, "99")),
        ("no_job_to_import", partial(write_jobs_table, [], Path("t.csv"), {})),
        ("no_step_time_in_jobs", partial(write_jobs_table, ["12"], Path("t.csv"), {})),
        (
            "not_a_count",
            partial(write_jobs_table, ["12"], Path("t.csv"), {"local_batch_size": "x"}),
        ),
    ]
    dollars, euros = (f", price_per_gpu_hour: {price}" for price in ("2", "2eur"))
    rows += [
        ("question_of_search", partial(searched.recommend, max_time="4h")),
        ("budget_without_price", sweep),
        ("budget_in_other_currency", partial(sweep, euros)),
        ("first_trial_failed", partial(sweep, dollars)),
    ]
    golden.refusals(rows)
