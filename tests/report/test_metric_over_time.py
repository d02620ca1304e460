"""The metric of a target over the time of training, on each allocation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up_runs import convergence_rows, outlook_row, recommendation, trial_row
from sentences import Golden

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame
from scalelab.report.html import Figures
from scalelab.report.samples import metric_figure, metric_sentence, metric_table
from scalelab.report.subject import ReportSubject

EVERY = 5000  # samples between evaluations


def streams(observations: pd.DataFrame) -> pd.DataFrame:
    """Evaluations whose metric grows evenly until the target, where it is reached."""
    rows = []
    for row in observations[observations["target_metric"].notna()].to_dict("records"):
        samples = np.arange(EVERY, row["num_samples"] + 1, EVERY)
        end = row["samples_to_target"]
        if not pd.isna(end):
            samples = np.append(samples[samples < end], end)
        for seen in samples:
            value = 0.95 * seen / (220_000 if pd.isna(end) else end)
            rows.append(
                {
                    "trial_id": row["trial_id"],
                    "attempt": row["attempt"],
                    "event": "evaluation",
                    "samples": seen,
                    "val_acc": value,
                }
            )
            rows.append(rows[-1] | {"event": "step", "val_acc": None, "loss": 1.0})
    return pd.DataFrame(rows)


@pytest.fixture
def trained(observations: pd.DataFrame, answered: Recommendation) -> ReportSubject:
    return ReportSubject.of(observations, answered, lambda: streams(observations))


def test_a_run_reaches_its_target_when_its_samples_are_trained(
    trained: ReportSubject,
) -> None:
    table = metric_table(trained)
    ends = table[table["value"] >= 0.95 - 1e-9].set_index(["world_size", "trial_id"])
    assert len(ends) == 6 * 3
    observed = trained.observations.set_index("trial_id")
    for row in trained.plan:
        own = ends.loc[row.world_size]
        rate = row.throughput_samples_per_s.value
        samples = observed.loc[own.index, "samples_to_target"].astype(float)
        np.testing.assert_allclose(own["time_s"], samples / rate)
        assert own["global_batch_size"].eq(row.batch.global_batch_size).all()


def test_every_run_has_a_line_and_every_allocation_a_colour(
    trained: ReportSubject,
) -> None:
    table = metric_table(trained)
    figure = metric_figure(table, trained.labels)
    assert len(figure.data) == 6 * 3
    shown = [trace for trace in figure.data if trace.showlegend]
    assert [trace.name for trace in shown] == [
        *("1 GPU", "2 GPUs", "4 GPUs", "8 GPUs", "16 GPUs", "32 GPUs")
    ]
    looks = {(trace.line.color, trace.line.dash) for trace in figure.data}
    assert len(looks) == 6
    assert all(list(trace.x) == sorted(trace.x) for trace in figure.data)
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == 0.95


def test_a_long_run_is_thinned_and_keeps_its_end(trained: ReportSubject) -> None:
    table = metric_table(trained)
    run = table[table["trial_id"] == table["trial_id"].iloc[0]].iloc[:1]
    long = pd.concat([run.assign(time_s=second) for second in range(1, 5001)])
    (trace,) = metric_figure(long, trained.labels).data
    assert 150 < len(trace.x) < 300
    assert trace.x[-1] == 5000
    assert list(trace.x) == sorted(trace.x)


def test_the_sentence_says_when_the_recommended_row_is_there(
    trained: ReportSubject, golden: Golden
) -> None:
    table = metric_table(trained)
    said = metric_sentence(table, trained.labels)
    golden(said)
    assert ", by 3 of 3 runs." in said
    never = table[table["value"] < 0.9]
    golden(metric_sentence(never, trained.labels))
    elsewhere = table[~table["is_chosen"]]
    assert "rate of 32 GPUs" in metric_sentence(elsewhere, trained.labels)


def test_a_batch_that_nobody_trained_with_has_no_line(
    observations: pd.DataFrame, golden: Golden
) -> None:
    rows = [
        outlook_row(1, 512, is_baseline=True),
        outlook_row(2, 520, is_chosen=True),
        outlook_row(4, 4096),
    ]
    subject = ReportSubject.of(
        observations, recommendation(rows), lambda: streams(observations)
    )
    table = metric_table(subject)
    assert set(table["world_size"]) == {1, 4}
    said = metric_sentence(table, subject.labels)
    golden(said)


def test_only_runs_with_the_rule_of_a_row_are_shown(rng: np.random.Generator) -> None:
    rules = ("none", "linear")
    rows = [
        row | {"lr_rule": rule, "trial_id": f"{rule}{number}"}
        for rule in rules
        for number, row in enumerate(convergence_rows(rng))
    ]
    observations = frame([trial_row(1, 512), trial_row(2, 256), *rows])
    row = outlook_row(2, 512, is_chosen=True, settings={"lr_rule": "none"})
    answer = recommendation([outlook_row(1, 512, is_baseline=True), row])
    table = metric_table(
        ReportSubject.of(observations, answer, lambda: streams(observations))
    )
    by_size = table.groupby("world_size")["trial_id"].unique()
    assert len(by_size[1]) == 6
    assert {each[:4] for each in by_size[2]} == {"none"}
    other = replace(row, settings={"lr_rule": "sqrt"})
    stands_in = recommendation([outlook_row(1, 512, is_baseline=True), other])
    table = metric_table(
        ReportSubject.of(observations, stands_in, lambda: streams(observations))
    )
    assert len(table.loc[table["world_size"] == 2, "trial_id"].unique()) == 6


def test_a_table_has_a_point_for_each_of_its_targets() -> None:
    told = {"kind": "imported", "metric_mode": "max", "target_metric": "accuracy"}
    told |= {"reached_target": True}
    rows = [
        trial_row(2, 64, target_value=value, samples_to_target=samples, **told)
        for value, samples in ((75.0, 8000), (75.0, 8200), (80.0, 9000), (80.0, 9500))
    ]
    rows.append(
        trial_row(2, 64, target_value=85.0, num_samples=20_000, **told)
        | {"reached_target": False, "outcome": "target_not_reached"}
    )
    chosen = outlook_row(2, 128, is_chosen=True)
    answer = recommendation([outlook_row(1, 64, is_baseline=True), chosen])
    subject = ReportSubject.of(frame(rows), answer)
    table = metric_table(subject)
    rate = chosen.throughput_samples_per_s.value
    lines = {
        run: list(zip(points["value"], points["time_s"] * rate, strict=True))
        for run, points in table.groupby("trial_id")
    }
    assert lines == {
        "0": [(75.0, pytest.approx(8000)), (80.0, pytest.approx(9000))],
        "1": [(75.0, pytest.approx(8200)), (80.0, pytest.approx(9500))],
    }
    assert ", by 2 of 2 runs." in metric_sentence(table, subject.labels)


def test_streams_are_read_only_where_they_are_shown(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    def unread() -> pd.DataFrame:
        raise AssertionError("the streams were read")

    without_target = frame([trial_row(1, 512), trial_row(2, 256)])
    assert metric_table(ReportSubject.of(without_target, answered, unread)).empty
    assert metric_table(ReportSubject.of(observations, None, unread)).empty


def test_without_runs_to_a_target_the_figure_says_so(
    answered: Recommendation,
) -> None:
    observations = frame([trial_row(1, 512), trial_row(2, 256)])
    figure = Figures(observations, answered).metric_over_time
    (note,) = figure.layout.annotations[-1:]
    assert "No run trained to a target" in note.text.replace("<br>", " ")
