from __future__ import annotations

import json
import re

import pytest

from scalelab.experiment.program import MetricsSource
from scalelab.reading.logs.lines import (
    Report,
    ReportReader,
    read_groups,
    read_json,
)


def read_values(values: object) -> Report | None:
    return read_json(json.dumps(values).encode())


def read_found(patterns: tuple[str, ...], line: bytes) -> Report | None:
    return read_groups(list(map(re.compile, patterns)), line)


def test_json_line_is_a_report() -> None:
    assert read_values({"step": 3, "samples": 96, "t": 1.5, "loss": 2}) == Report(
        step=3, samples=96, t=1.5, metrics={"loss": 2}
    )


def test_only_numbers_are_metrics_also_those_of_a_diverged_run() -> None:
    line = b'{"step": 1, "a": NaN, "b": Infinity, "c": true, "d": "x", "e": [1]}'
    report = read_json(line)
    assert report is not None
    assert report.step == 1
    assert str(dict(report.metrics)) == "{'a': nan, 'b': inf}"
    assert read_json(b'{"step": Infinity, "t": NaN}') is None
    reader = ReportReader(MetricsSource())
    counted = b'{"epoch": NaN, "batch_of_epoch": 3, "batches_of_epoch": Infinity}'
    assert reader.read(counted) == Report(step=3)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b'{"step": 1, "sam',
        b"\xff\xfe\x00 garbage",
        b"[1, 2]",
        b"12",
        b"{}",
        b'{"note": "only text"}',
        b'{"step": 1.5}',
        b'{"step": -1}',
        b'{"step": NaN}',
        b'{"step": 1e300}',
        b'{"step": true}',
        b'{"step": ' + b"9" * 5000 + b"}",
        b'{"a": ' * 200_000,
    ],
)
def test_line_that_reports_nothing_is_passed_over(line: bytes) -> None:
    assert read_json(line) is None


def test_whole_numbers_may_be_written_as_fractions() -> None:
    assert read_values({"step": 4.0, "samples": 1e3}) == Report(step=4, samples=1000)


def test_samples_that_are_no_count_are_not_said() -> None:
    report = read_values({"step": 4, "samples": 10.5, "t": float("nan")})
    assert report == Report(step=4)


def test_metrics_without_a_step_belong_to_the_last_one() -> None:
    assert read_values({"val_acc": 0.5}) == Report(step=None, metrics={"val_acc": 0.5})


def test_all_patterns_make_one_report() -> None:
    patterns = (r"step\s+(?P<step>[\d,]+)", r"loss (?P<loss>\S+)", r"(?P<t>\S+) s$")
    assert read_found(
        patterns, b"epoch 1 | step 12,345 | loss 1e-3 | 7.25 s"
    ) == Report(step=12345, t=7.25, metrics={"loss": 0.001})
    assert read_found(patterns, b"nothing here \xff") is None
    report = read_found(patterns, b"loss nan")
    assert report is not None
    assert str(dict(report.metrics)) == "{'loss': nan}"


def test_group_that_took_no_part_is_not_said() -> None:
    patterns = (r"step (?P<step>\d+)(?: of (?P<total>\d+))?",)
    assert read_found(patterns, b"step 3") == Report(step=3)


def test_group_that_is_no_number_is_not_said() -> None:
    patterns = (r"step (?P<step>\d+) loss (?P<loss>\S+)",)
    assert read_found(patterns, b"step 3 loss n/a") == Report(step=3)


def test_decimal_comma_is_not_taken_for_thousands() -> None:
    patterns = (r"step (?P<step>\d+) loss (?P<loss>\S+)",)
    assert read_found(patterns, b"step 3 loss 0,95") == Report(step=3)


def test_readers_say_what_they_expect() -> None:
    assert ReportReader(MetricsSource(jsonl="x")).expectation == (
        'a JSON object such as {"step": 10, "samples": 640}'
    )
    source = MetricsSource(regex=(r"(?P<step>\d)",))  # as it can be pasted
    assert ReportReader(source).expectation == (
        r"matched by metrics.regex '(?P<step>\d)'"
    )


def steps_of(
    lines: list[bytes], source: MetricsSource, accumulation: int = 1
) -> list[tuple[int | None, bool] | None]:
    reader = ReportReader(source, accumulation)
    reports = [reader.read(line) for line in lines]
    return [report and (report.step, report.is_evaluation) for report in reports]


BATCHES = MetricsSource(
    regex=(r"(?P<batch_of_epoch>\d+)/(?:(?P<batches_of_epoch>\d+)|Unknown)$",)
)


def test_batches_of_epochs_are_added_up() -> None:
    lines = [b"1/5", b"4/5", b"2/5", b"5/5", b"5/5", b"1/5"]
    steps = [1, 4, 7, 10, 10, 11]
    assert steps_of(lines, BATCHES) == [(step, False) for step in steps]


def test_batches_of_a_step_make_one() -> None:
    lines = [b"1/6", b"2/6", b"3/6", b"6/6", b"2/6", b"3/6"]
    steps = [0, 0, 1, 2, 2, 3]
    assert steps_of(lines, BATCHES, 3) == [(step, False) for step in steps]


def test_first_epoch_may_show_how_long_epochs_are() -> None:
    lines = [b"3/Unknown", b"7/Unknown", b"2/7", b"7/7", b"1/7"]
    steps = [3, 7, 9, 14, 15]
    assert steps_of(lines, BATCHES) == [(step, False) for step in steps]


def test_lines_of_another_length_are_of_an_evaluation() -> None:
    lines = [b"1/5", b"5/5", b"1/3", b"3/3", b"1/5"]
    found = [(1, False), (5, False), (None, True), (None, True), (6, False)]
    assert steps_of(lines, BATCHES) == found
    bars = MetricsSource(regex=(r"(?P<step>\d+)/(?P<steps_in_all>\d+)",))
    assert steps_of([b"1/9", b"1/2", b"2/9"], bars) == [
        (1, False),
        (None, True),
        (2, False),
    ]


def test_the_number_of_the_epoch_tells_lines_of_the_same_batch_apart() -> None:
    once = MetricsSource(
        regex=(r"(?P<epoch>[\d.]+) (?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+)",)
    )
    lines = [b"1 200/250", b"1 200/250", b"2 200/250", b"3 200/250", b"3.5 240/250"]
    steps = [200, 200, 450, 700, 740]
    assert steps_of(lines, once) == [(step, False) for step in steps]
    report = ReportReader(once).read(lines[0])
    assert report == Report(step=200, metrics={"epoch": 1.0})


def test_steps_of_epochs_are_whole_whatever_is_accumulated() -> None:
    pattern = r"(?P<step_of_epoch>\d+)/(?P<steps_of_epoch>\d+)"
    lines = [b"10/32", b"20/32", b"30/32", b"10/32", b"1/4"]
    steps = [(10, False), (20, False), (30, False), (42, False), (None, True)]
    assert steps_of(lines, MetricsSource(regex=(pattern,)), 2) == steps


def test_json_may_count_batches_too() -> None:
    lines = [
        json.dumps({"batch_of_epoch": batch, "batches_of_epoch": 4, "loss": 1}).encode()
        for batch in (2, 4, 2)
    ]
    source = MetricsSource(jsonl="x")
    assert steps_of(lines, source) == [(2, False), (4, False), (6, False)]
    report = ReportReader(source).read(lines[0])
    assert report == Report(step=2, metrics={"loss": 1})
