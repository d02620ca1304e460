import pytest
from made_up_runs import outlook_row, planned, recommendation
from sentences import Golden

from scalelab.inputs.numerals import DeviceWords, Interval
from scalelab.records.observations import frame
from scalelab.report.budget import (
    budget_figure,
    budget_sentence,
    budget_table,
    trade_off_figure,
    trade_off_sentence,
    trade_off_table,
)
from scalelab.report.subject import ReportSubject


def test_every_allocation_has_its_time_and_device_hours(subject: ReportSubject) -> None:
    table = budget_table(subject)
    assert table["world_size"].tolist() == [1, 2, 4, 8, 16, 32]
    assert table["gpu_hours"].tolist() == pytest.approx(
        (table["time_s"] * table["world_size"] / 3600).tolist()
    )
    assert (table["time_lo_s"] < table["time_hi_s"]).all()
    assert table.loc[table["is_chosen"], "world_size"].tolist() == [16]


def test_without_a_recommendation_there_is_no_budget() -> None:
    assert budget_table(ReportSubject.of(frame([]))).empty


def test_the_budget_figure_has_a_panel_for_time_and_one_for_hours(
    subject: ReportSubject,
) -> None:
    figure = budget_figure(budget_table(subject), subject.labels)
    assert figure.layout.yaxis.title.text == "time"
    assert figure.layout.yaxis2.title.text == "GPU-h"
    assert figure.layout.xaxis2.title.text == "GPUs"
    lines = [trace for trace in figure.data if trace.name in ("time", "GPU-h")]
    # what was not measured is drawn hollow
    assert lines[0].marker.symbol == ("circle",) * 5 + ("circle-open",)
    rings = [trace for trace in figure.data if trace.name == "recommended"]
    assert [list(ring.x) for ring in rings] == [[16], [16]]


def test_the_trade_off_joins_only_what_nothing_beats(golden: Golden) -> None:
    answer = recommendation(planned((1, 8, 64, 512), chosen=8, measured_up_to=64))
    subject = ReportSubject.of(frame([]), answer)
    table = trade_off_table(subject)
    assert table["is_front"].tolist() == [True, True, True, False]
    figure = trade_off_figure(table, subject.labels)
    assert list(figure.data[0].text) == ["64", "8", "1"]
    assert list(figure.data[1].text) == ["512"]
    golden(trade_off_sentence(table, subject.labels))


def test_several_devices_are_compared_by_money(golden: Golden) -> None:
    rows = [
        outlook_row(
            count,
            512,
            device=device,
            amounts={"money": Interval(value=cost, lo=cost, hi=cost)},
            is_chosen=(device, count) == ("p2", 1),
            is_pareto=device == "p2",
        )
        for device, count, cost in (("c4", 1, 5.0), ("c4", 4, 6.0), ("p2", 1, 2.0))
    ]
    words = {name: DeviceWords("GPU", "GPU-h") for name in ("c4", "p2")}
    answer = recommendation(rows, devices=words, currency="eur")
    subject = ReportSubject.of(frame([]), answer)
    assert budget_table(subject)["world_size"].tolist() == [1]
    table = trade_off_table(subject)
    assert table["x"].tolist() == [5.0, 6.0, 2.0]
    figure = trade_off_figure(table, subject.labels)
    assert figure.layout.xaxis.title.text == "eur"
    assert "What time costs in eur" in figure.layout.title.text
    assert list(figure.data[0].text) == ["1 p2"]
    assert list(figure.data[1].text) == ["4 c4", "1 c4"]
    sentence = trade_off_sentence(table, subject.labels)
    golden(sentence)


def test_sentences_name_the_ends_of_the_trade(
    subject: ReportSubject, golden: Golden
) -> None:
    table = trade_off_table(subject)
    golden(budget_sentence(budget_table(subject), subject.labels))
    assert "No allocation is beaten" in trade_off_sentence(table, subject.labels)


def test_one_choice_is_both_fastest_and_cheapest(golden: Golden) -> None:
    answer = recommendation([outlook_row(1, 64, is_chosen=True)])
    subject = ReportSubject.of(frame([]), answer)
    golden(budget_sentence(budget_table(subject), subject.labels))


def test_of_many_points_only_the_ends_and_the_chosen_are_named() -> None:
    counts = range(1, 21)
    answer = recommendation(planned(counts, chosen=8, measured_up_to=20))
    subject = ReportSubject.of(frame([]), answer)
    figure = trade_off_figure(trade_off_table(subject), subject.labels)
    named = [text for trace in figure.data[:2] for text in trace.text or () if text]
    assert "8" in named
    assert "7" not in named
    assert len(named) < 6
