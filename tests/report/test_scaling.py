from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up_runs import outlook_row, recommendation, step_time_s, trial_row
from sentences import Golden

from scalelab.inputs.numerals import Interval
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame
from scalelab.report.scaling import (
    efficiency_sentence,
    efficiency_table,
    measured_points,
    speedup_sentence,
    speedup_table,
    throughput_sentence,
    throughput_table,
)
from scalelab.report.subject import ReportSubject


def series(table: pd.DataFrame, name: str) -> pd.DataFrame:
    return table[table["series"] == name].set_index("world_size")


def test_throughput_has_law_measurements_and_ideal(subject: ReportSubject) -> None:
    table = throughput_table(subject)
    law, ideal = series(table, "law"), series(table, "ideal")
    assert law.index.tolist() == [1, 2, 4, 8, 16, 32]
    start = 512 / step_time_s(1, 1, 512)
    expected = start * np.array([1, 2, 4, 8, 16, 32])
    np.testing.assert_allclose(ideal["throughput_samples_per_s"], expected)
    assert law["basis"].tolist() == ["measured"] * 5 + ["extrapolated"]
    assert law.index[law["is_chosen"]].tolist() == [16]
    measured = series(table, "measured")
    assert measured["num_repeats"].tolist() == [4, 3, 3, 3, 3]
    np.testing.assert_allclose(
        measured["throughput_samples_per_s"],
        law.loc[measured.index, "throughput_samples_per_s"],
        rtol=0.03,
    )


def test_a_point_is_the_median_of_its_repeats_with_their_extremes() -> None:
    rows = [
        trial_row(2, 32, repeat=n, noise=noise)
        for n, noise in enumerate((1.0, 1.25, 0.8))
    ]
    point = measured_points(ReportSubject.of(frame(rows)).rows).iloc[0]
    middle = 64 / step_time_s(2, 1, 32)
    assert point["throughput_samples_per_s"] == pytest.approx(middle)
    assert point["lo"] == pytest.approx(middle / 1.25)
    assert point["hi"] == pytest.approx(middle / 0.8)


def test_a_single_repeat_has_the_interval_within_it() -> None:
    point = measured_points(ReportSubject.of(frame([trial_row(2, 32)])).rows).iloc[0]
    middle = point["throughput_samples_per_s"]
    assert point["lo"] == pytest.approx(middle / 1.01)
    assert point["hi"] == pytest.approx(middle / 0.99)


def test_a_point_counts_the_samples_that_were_drawn() -> None:
    rows = frame([trial_row(2, 32)])
    (whole,) = measured_points(ReportSubject.of(rows).rows).to_dict("records")
    drawn = rows.assign(samples_per_step=16.0)  # of 64
    (point,) = measured_points(ReportSubject.of(drawn).rows).to_dict("records")
    for name in ("throughput_samples_per_s", "lo", "hi"):
        assert point[name] == pytest.approx(whole[name] / 4)


def test_speedup_is_one_at_the_baseline_and_below_ideal(subject: ReportSubject) -> None:
    table = speedup_table(subject)
    law, ideal = series(table, "law"), series(table, "ideal")
    assert law.loc[1, "speedup"] == pytest.approx(1)
    assert ideal["speedup"].tolist() == pytest.approx([1, 2, 4, 8, 16, 32])
    assert (law["speedup"] <= ideal["speedup"] + 1e-9).all()
    assert (law["lo"] <= law["speedup"]).all()
    assert (law["speedup"] <= law["hi"]).all()
    assert set(table["baseline_world_size"]) == {1}
    assert "other configuration" not in set(table["series"])


def test_efficiency_agrees_with_the_recommendation(
    subject: ReportSubject, answered: Recommendation
) -> None:
    law = series(efficiency_table(subject), "law")
    for name, end in (("scaling_efficiency", "value"), ("lo", "lo"), ("hi", "hi")):
        said = [getattr(row.scaling_efficiency, end) for row in answered.rows]
        np.testing.assert_allclose(law[name], said)
    ideal = series(efficiency_table(subject), "ideal")
    np.testing.assert_allclose(ideal["scaling_efficiency"], 1)


def test_a_batch_that_needs_more_samples_slows_the_job() -> None:
    """Weak scaling doubles throughput; twice the samples leave no speedup."""
    base = outlook_row(1, 64)
    rate = base.throughput_samples_per_s
    doubled = Interval(value=2 * rate.value, lo=2 * rate.lo, hi=2 * rate.hi)
    samples = Interval(**{end: 2 * base.samples.value for end in ("value", "lo", "hi")})
    wide = replace(
        outlook_row(2, 128, is_chosen=True),
        throughput_samples_per_s=doubled,
        samples=samples,
        amounts=base.amounts,
    )
    table = speedup_table(ReportSubject.of(frame([]), recommendation([base, wide])))
    assert series(table, "law").loc[2, "speedup"] == pytest.approx(1)


def test_other_batches_are_reduced_to_their_extremes(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    table = throughput_table(ReportSubject.of(observations, answered))
    others = series(table, "other configuration")
    assert others.index.tolist() == [1, 1]
    assert others["global_batch_size"].tolist() == [64, 4096]
    assert others["job_time_s"].isna().all()


def test_without_an_answer_the_smallest_measured_count_is_the_baseline() -> None:
    rows = [trial_row(count, 512 // count) for count in (2, 4)]
    table = speedup_table(ReportSubject.of(frame(rows)))
    measured = series(table, "measured")
    assert measured.loc[2, "speedup"] == pytest.approx(1)
    expected = step_time_s(2, 1, 256) / step_time_s(4, 1, 128)
    assert measured.loc[4, "speedup"] == pytest.approx(expected)
    assert set(table["baseline_world_size"]) == {2}
    assert set(table["series"]) == {"measured", "ideal"}
    efficiency = series(efficiency_table(ReportSubject.of(frame(rows))), "measured")
    assert efficiency.loc[4, "scaling_efficiency"] == pytest.approx(expected / 2)


def test_an_empty_run_gives_empty_tables() -> None:
    subject = ReportSubject.of(frame([]))
    for table in (throughput_table, speedup_table, efficiency_table):
        assert table(subject).empty


def test_a_measured_rate_whose_ends_are_unknown_keeps_its_digits() -> None:
    alone = trial_row(1, 32, step_time_lo_s=None, step_time_hi_s=None)
    subject = ReportSubject.of(frame([alone, trial_row(2, 32)]))
    table = throughput_table(subject)
    first = table[table["series"].eq("measured") & table["world_size"].eq(1)]
    rate = first["throughput_samples_per_s"].item()
    said = throughput_sentence(first, subject.labels)
    assert said.startswith(f"1 GPU: {rate:,.0f} samples per second. ")
    assert rate > 100


def test_sentences_speak_of_the_recommended_count(
    subject: ReportSubject, golden: Golden
) -> None:
    labels = subject.labels
    golden(speedup_sentence(speedup_table(subject), labels))
    golden(efficiency_sentence(efficiency_table(subject), labels))
    golden(throughput_sentence(throughput_table(subject), labels))


def test_without_a_law_the_sentence_says_so(
    observations: pd.DataFrame, golden: Golden
) -> None:
    subject = ReportSubject.of(observations)
    sentence = throughput_sentence(throughput_table(subject), subject.labels)
    golden(sentence)


def test_sentences_about_the_baseline_say_that_it_is_one(
    subject: ReportSubject,
) -> None:
    labels = subject.labels
    for table_of, sentence_of in (
        (speedup_table, speedup_sentence),
        (efficiency_table, efficiency_sentence),
    ):
        table = table_of(subject)
        baseline = table[table["world_size"] == table["baseline_world_size"]]
        assert "is the baseline" in sentence_of(baseline, labels)


def test_an_efficiency_is_that_of_the_same_batch(
    subject: ReportSubject, answered: Recommendation
) -> None:
    """The job gains from a better batch, too: that is no efficiency of the devices."""
    share = Interval(value=0.9, lo=0.8, hi=1.0)
    rows = [replace(row, scaling_efficiency=share) for row in answered.rows]
    other = efficiency_table(replace(subject, plan=tuple(rows)))
    law = series(other, "law")
    np.testing.assert_allclose(law["scaling_efficiency"], 0.9)
    before = series(efficiency_table(subject), "measured")["scaling_efficiency"]
    after = series(other, "measured")["scaling_efficiency"]
    shares = series(efficiency_table(subject), "law")["scaling_efficiency"]
    np.testing.assert_allclose(after / before, 0.9 / shares.loc[:16])


def test_more_than_ideal_is_explained(subject: ReportSubject, golden: Golden) -> None:
    table = pd.DataFrame(
        {
            "series": ["law", "law"],
            "world_size": [4, 64],
            "baseline_world_size": [4, 4],
            "scaling_efficiency": [1.0, 1.27],
            "is_chosen": [False, True],
        }
    )
    said = efficiency_sentence(table, subject.labels)
    golden(said)
    assert "another batch" in said
    assert "the rest goes" not in said


def beside_steps(answer: Recommendation, seconds: float) -> Recommendation:
    """The same answer where a job takes some time beside its steps."""
    rows = []
    for row in answer.rows:
        time = row.time_s
        longer = Interval(
            value=time.value + seconds, lo=time.lo + seconds, hi=time.hi + seconds
        )
        rows.append(replace(row, amounts={**row.amounts, "time": longer}))
    return replace(answer, rows=tuple(rows))


@pytest.mark.parametrize("seconds", [0.0, 600.0])
@pytest.mark.parametrize("seed", range(5))
def test_measured_and_law_differ_alike_in_every_figure(
    answered: Recommendation, seconds: float, seed: int
) -> None:
    noise = np.exp(0.2 * np.random.default_rng(seed).standard_normal(6))
    places = [(1, 512), (2, 256), (4, 128), (8, 64), (16, 32)]
    measured = frame(
        [
            trial_row(size, local, repeat=0, noise=float(each))
            for (size, local), each in zip(places, noise, strict=False)
        ]
    )
    subject = ReportSubject.of(measured, beside_steps(answered, seconds))
    signs = []
    for table, name in (
        (throughput_table(subject), "throughput_samples_per_s"),
        (speedup_table(subject), "speedup"),
        (efficiency_table(subject), "scaling_efficiency"),
    ):
        points, law = series(table, "measured"), series(table, "law")
        signs.append(np.sign(points[name] - law[name].reindex(points.index)).tolist())
    assert signs[0] == signs[1] == signs[2]
    assert len(signs[0]) == len(places)


def test_the_measured_baseline_is_its_own_baseline(
    subject: ReportSubject, answered: Recommendation
) -> None:
    late = replace(subject, plan=beside_steps(answered, 3600.0).rows)
    for each in (subject, late):
        (point,) = series(efficiency_table(each), "measured").loc[[1]].itertuples()
        assert point.lo <= 1.0 <= point.hi
        assert point.scaling_efficiency == pytest.approx(1.0, rel=0.05)
