import numpy as np
import pytest
from made_up_runs import planned, recommendation, trial_row
from sentences import Golden

from scalelab.records.observations import frame
from scalelab.report.scaling import PHASES, phase_figure, phase_sentence, phase_table
from scalelab.report.subject import ReportSubject


def test_the_parts_add_up_to_the_step(subject: ReportSubject) -> None:
    table = phase_table(subject)
    assert table["world_size"].tolist() == [1, 2, 4, 8, 16]
    parts = table[list(PHASES)].sum(axis=1)
    np.testing.assert_allclose(parts, table["step_time_s"], rtol=0.02)
    assert (table["other_s"] >= 0).all()


def test_shares_fill_the_bar(subject: ReportSubject) -> None:
    figure = phase_figure(phase_table(subject), subject.labels)
    shares = np.sum([np.asarray(trace.y, dtype=float) for trace in figure.data], axis=0)
    np.testing.assert_allclose(shares, 100)
    assert figure.layout.barmode == "stack"
    patterns = [trace.marker.pattern.shape for trace in figure.data]
    assert len(set(patterns)) == len(patterns)


def test_a_phase_that_was_not_recorded_is_missing_not_zero() -> None:
    rows = [trial_row(1, 8, data_wait_s=None)]
    table = phase_table(ReportSubject.of(frame(rows)))
    assert table["data_wait_s"].isna().all()
    assert table["compute_s"].notna().all()


def test_trials_without_phases_have_no_bar() -> None:
    rows = [trial_row(1, 8, compute_s=None)]
    assert phase_table(ReportSubject.of(frame(rows))).empty


def test_the_sentence_tells_how_the_exchange_grows(
    subject: ReportSubject, golden: Golden
) -> None:
    sentence = phase_sentence(phase_table(subject), subject.labels)
    golden(sentence)
    one = phase_table(ReportSubject.of(frame([trial_row(1, 8)])))
    golden(phase_sentence(one, subject.labels))


def test_repeats_count_by_their_median() -> None:
    rows = [
        trial_row(1, 8, repeat=n, noise=noise) for n, noise in enumerate((1, 1.1, 5))
    ]
    table = phase_table(ReportSubject.of(frame(rows)))
    assert table["step_time_s"].iloc[0] == pytest.approx(1.1 * rows[0]["step_time_s"])


def test_the_nearest_measured_batch_stands_for_one_that_was_not_measured(
    golden: Golden,
) -> None:
    rows = [
        trial_row(count, 512 // count // part, noise=1.0 + part / 100)
        for count in (1, 2, 4)
        for part in (1, 2, 16)
        if (count, part) != (4, 1)
    ]
    answer = recommendation(planned((1, 2, 4), chosen=4, measured_up_to=4))
    measured = ReportSubject.of(frame(rows), answer)
    table = phase_table(measured).set_index("world_size")
    assert table["local_batch_size"].to_dict() == {1: 512, 2: 256, 4: 64}
    assert table["is_planned_batch"].to_dict() == {1: True, 2: True, 4: False}
    golden(phase_sentence(table.reset_index(), measured.labels))
