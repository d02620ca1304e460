import numpy as np
import pandas as pd
from made_up_runs import convergence_rows, trial_row

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame
from scalelab.report.samples import samples_figure, samples_sentence, samples_table
from scalelab.report.subject import ReportSubject


def test_runs_that_never_arrived_are_lower_bounds(subject: ReportSubject) -> None:
    table = samples_table(subject)
    bounds = table[table["is_lower_bound"]]
    assert set(bounds["global_batch_size"]) == {4096}
    assert set(bounds["samples"]) == {200_000}
    assert set(table["target"]) == {"val_acc >= 0.95"}
    assert set(table.loc[table["is_planned_batch"], "global_batch_size"]) == {512}


def test_the_line_joins_medians_of_those_that_arrived(subject: ReportSubject) -> None:
    table = samples_table(subject)
    figure = samples_figure(table, subject.labels)
    line = figure.data[0]
    assert line.name == "linear LR rule"
    assert list(line.x) == [64, 128, 256, 512, 1024]
    reached = table[~table["is_lower_bound"] & (table["global_batch_size"] == 64)]
    assert line.y[0] == reached["samples"].median()
    triangles = next(t for t in figure.data if "did not reach" in t.name)
    assert list(triangles.text) == [3]
    assert any(trace.name == "recommended batch" for trace in figure.data)


def test_only_the_commonest_target_of_the_workload_is_shown(
    rng: np.random.Generator, answered: Recommendation
) -> None:
    others = [row | {"target_value": 0.99} for row in convergence_rows(rng)[:2]]
    foreign = convergence_rows(rng, workload="digits_mlp")
    rows = [*convergence_rows(rng), *others, *foreign]
    table = samples_table(ReportSubject.of(frame(rows), answered))
    assert len(table) == 18


def test_failed_trials_and_trials_without_target_say_nothing() -> None:
    failed = trial_row(
        1,
        8,
        outcome="failed",
        reason="x",
        num_samples=100,
        target_metric="val_acc",
        metric_mode="max",
        target_value=0.9,
        step_time_s=None,
        throughput_samples_per_s=None,
    )
    assert samples_table(ReportSubject.of(frame([failed, trial_row(1, 8)]))).empty


def test_trials_without_a_step_time_still_count(rng: np.random.Generator) -> None:
    rows = [
        row | {"step_time_s": None, "throughput_samples_per_s": None}
        for row in convergence_rows(rng)
    ]
    assert len(samples_table(ReportSubject.of(frame(rows)))) == 18


def test_learning_rate_rules_are_told_apart(rng: np.random.Generator) -> None:
    rows = convergence_rows(rng)
    rows += [row | {"lr_rule": None} for row in convergence_rows(rng)]
    subject = ReportSubject.of(frame(rows))
    figure = samples_figure(samples_table(subject), subject.labels)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [line.name for line in lines] == ["linear LR rule", "none LR rule"]
    assert lines[0].line.dash != lines[1].line.dash


def test_sentences(subject: ReportSubject) -> None:
    table = samples_table(subject)
    assert "3 runs did not reach the target" in samples_sentence(table, subject.labels)
    never = table[table["is_lower_bound"]]
    assert samples_sentence(never, subject.labels).startswith("No run reached")
    all_there = table[~table["is_lower_bound"]]
    sentence = samples_sentence(all_there, subject.labels)
    medians = all_there.groupby("global_batch_size")["samples"].median()
    assert f"global batch {medians.idxmin():.0f}: {medians.min():,.0f}." in sentence


def test_samples_keep_their_type(subject: ReportSubject) -> None:
    assert pd.api.types.is_float_dtype(samples_table(subject)["samples"])
