from dataclasses import replace

import pytest
from made_up_runs import outlook_row, planned, recommendation

from scalelab.inputs.numerals import Interval
from scalelab.recommend.answer.recommendation import Knee, Recommendation
from scalelab.report.sentences import (
    allocation_table,
    details,
    headline,
    next_trial_sentence,
    parameter_table,
)


def test_the_headline_answers(answered: Recommendation) -> None:
    assert headline(answered) == "Use 16 GPUs: the job takes 12.8 min and 3.4 GPU-h."


def test_the_headline_admits_that_nothing_fits(answered: Recommendation) -> None:
    short = replace(answered, meets_constraints=False, limits=("< 5 min", "< 1 usd"))
    assert headline(short) == (
        "Nothing meets < 5 min and < 1 usd. Closest is 16 GPUs: the job takes "
        "12.8 min and 3.4 GPU-h."
    )


def test_the_headline_names_the_price() -> None:
    cost = Interval(value=12.5, lo=12.0, hi=13.0)
    answer = recommendation(
        [outlook_row(1, 64, is_chosen=True, amounts={"money": cost})]
    )
    assert headline(answer).endswith("2.9 GPU-h, 12.5 USD.")
    table = allocation_table(answer)
    assert table.rows[0][table.columns.index("cost (USD)")] == "12.5"


def test_details_go_with_the_headline(answered: Recommendation) -> None:
    assert details(answered) == (
        "resnet_cifar on A100, 4 nodes (4x4), global batch 512 = 32 x 16.",
        "80% interval of the time: 12.5-13.0 min; this allocation is measured.",
        "Learning rate 0.4, by the linear rule.",
        "Returns diminish between 16 and 32 GPUs: from there a device added brings "
        "less than 50% of its share. The cause: inter-node all-reduce.",
        "Chosen by: the fastest allocation at which a device added still brings half.",
    )


def test_details_name_settings_accumulation_and_probability() -> None:
    row = outlook_row(
        1, 64, is_chosen=True, probability=0.99, settings={"options.feed": "dali"}
    )
    row = replace(row, batch=replace(row.batch, gradient_accumulation_steps=2))
    lines = details(
        recommendation([row], learning_rate=None, knee=None, limits=("< 4 h",))
    )
    assert lines[0].endswith(
        "1 node, global batch 64 = 64 x 1 x 2 accumulation steps, feed dali."
    )
    assert lines[2] == "Probability of < 4 h: 99%."
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("lo", "hi", "start"),
    [
        (None, None, "Returns do not diminish within the allocations considered."),
        (16, None, "Returns diminish somewhere above 16 GPUs: "),
        (16, 16, "Returns diminish at 16 GPUs: "),
    ],
)
def test_the_knee_may_lie_anywhere(
    answered: Recommendation, lo: int | None, hi: int | None, start: str
) -> None:
    knee = Knee(lo=lo, hi=hi, marginal_return=0.5, term="x", probability_in_range=0.5)
    assert any(line.startswith(start) for line in details(replace(answered, knee=knee)))


def test_the_table_has_a_row_per_allocation(answered: Recommendation) -> None:
    table = allocation_table(answered)
    assert table.columns == (
        "GPUs",
        "time",
        "80%",
        "GPU-h",
        "efficiency",
        "next: time",
        "next: GPU-h",
        "basis",
        "nodes",
        "global batch",
    )
    assert [row[0] for row in table.rows] == ["1", "2", "4", "8", "16", "32"]
    assert table.rows[0][4] == "100%*"
    assert table.rows[4] == (
        "16",
        "12.8 min",
        "12.5-13.0 min",
        "3.4",
        "82%",
        "-40%",
        "+10%",
        "measured",
        "4x4",
        "512",
    )


def test_the_last_row_has_no_next_and_an_unknown_probability_is_empty() -> None:
    rows = planned((1, 2), chosen=2, measured_up_to=2)
    rows = (
        replace(rows[0], probability=0.2),
        replace(rows[1], next_time_change=None, next_gpu_hours_change=None),
    )
    table = allocation_table(recommendation(rows, limits=("< 4 h",)))
    last = dict(zip(table.columns, table.rows[1], strict=True))
    assert last["next: time"] == ""
    assert last["P(limits)"] == ""
    assert table.rows[0][table.columns.index("P(limits)")] == "20%"


def test_the_next_trial_has_its_price(answered: Recommendation) -> None:
    assert answered.next_trial
    assert next_trial_sentence(answered.next_trial, answered) == (
        "32 GPUs (8x4), global batch 512 = 16 x 32, 60 steps, 1.1 GPU-h: it would "
        "settle whether 32 GPUs still pay."
    )
    unknown = replace(answered.next_trial, gpu_hours=None)
    assert "GPU-h" not in next_trial_sentence(unknown, answered)


def test_parameters_tell_what_is_not_pinned_down(answered: Recommendation) -> None:
    known = answered.parameters[0]
    open_one = replace(known, is_identified=False, remedy="Measure two nodes.")
    table = parameter_table(replace(answered, parameters=(known, open_one)))
    assert table.rows[0] == (
        "step time",
        "resnet_cifar",
        "compute per sample",
        "0.002 s",
        "0.0019 to 0.0021",
        "",
    )
    assert table.rows[1][-1] == "Measure two nodes."
