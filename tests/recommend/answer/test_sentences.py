import doctest
from dataclasses import replace
from itertools import chain
from types import ModuleType

import pytest
from made_up_runs import outlook_row, planned, recommendation

from scalelab.inputs import lines
from scalelab.inputs.numerals import Interval
from scalelab.laws.left_out import LeftOut
from scalelab.recommend.answer import sentences as module
from scalelab.recommend.answer.recommendation import Knee, Recommendation
from scalelab.recommend.answer.sentences import sentences, texts
from scalelab.recommend.answer.text import allocations, parameters


@pytest.fixture
def answered() -> Recommendation:
    rows = planned((1, 2, 4, 8, 16, 32), chosen=16, measured_up_to=16)
    return recommendation(rows)


def said(result: Recommendation, *parts: str) -> list[str]:
    return texts(sentences(result), *parts)


def test_the_first_sentence_answers(answered: Recommendation) -> None:
    use = "16 A100 (4 nodes x 4), global batch 512 = 32 x 16"
    assert said(answered, "use") == [f"Use {use}"]
    short = replace(answered, meets_constraints=False, limits=("< 5 min", "< 1 usd"))
    assert said(short, "unmet", "use") == [
        "Nothing meets < 5 min and < 1 usd.",
        f"Closest: {use}",
    ]


def test_where_nothing_was_asked_the_time_is_not_sure(answered: Recommendation) -> None:
    unsure = replace(answered, meets_constraints=False, confidence=0.9)
    assert said(unsure, "unmet", "use") == [
        "No time is sure at 90%.",
        "Use 16 A100 (4 nodes x 4), global batch 512 = 32 x 16",
    ]


def test_the_rest_follows_in_order(answered: Recommendation) -> None:
    assert [*chain(*sentences(answered).values())][1:] == [
        "learning rate 0.4 (rule: linear)",
        "12.8 min [12.5-13.0], 3.4 GPU-h",
        "Doubling stops paying between 16 and 32 GPUs (97% sure): inter-node "
        "all-reduce.",
        "Open: accuracy at batch 512 (assumes 90 epochs).",
        "Open: 2 of 33 trials ignored: other jobs ran on the node.",
        "Rule: the fastest allocation at which a device added still brings half.",
        "Not measured: accuracy at batch 512; assumes 90 epochs suffice.",
        "The trial that would change the answer most: 32 GPUs (8x4), global batch "
        "512 = 16 x 32, 60 steps, 1.1 GPU-h: it would settle whether 32 GPUs still "
        "pay.",
        "2 of 33 trials ignored: other jobs ran on the node.",
        "Sweep cost 6.3 GPU-h.",
    ]


def test_what_is_spent_and_the_chance_are_named() -> None:
    cost = Interval(value=12.5, lo=12.0, hi=13.0)
    row = outlook_row(1, 64, is_chosen=True, amounts={"money": cost}, probability=0.99)
    limited = {"time": 4 * 3600.0, "money": 20.0}
    answer = recommendation([row], limits=("< 4 h", "< 20 usd"), limited=limited)
    (takes,) = said(answer, "takes")
    assert takes.endswith("2.9 GPU-h, 12.5 usd")
    assert said(answer, "chance") == ["Chance of meeting < 4 h and < 20 usd: 99%."]
    columns = allocations(answer)
    assert columns["money"] == ["usd", "12.5"]
    assert columns["chance"] == ["chance", "99%"]


def test_settings_and_accumulation_are_named() -> None:
    row = outlook_row(1, 64, is_chosen=True, settings={"options.feed": "dali"})
    row = replace(row, batch=replace(row.batch, gradient_accumulation_steps=2))
    answer = recommendation([row], learning_rate=None, knee=None)
    assert said(answer, "settings") == ["feed dali"]
    assert said(answer, "use")[0].endswith("64 x 1 x 2 accumulation steps")
    assert said(answer, "knee") == []


@pytest.mark.parametrize(
    ("lo", "hi", "sentence"),
    [
        (
            None,
            None,
            "Nothing measured, up to 16 GPUs, shows diminishing returns; 32 are "
            "extrapolated.",
        ),
        (16, None, "Doubling stops paying somewhere above 16 GPUs (75% sure): x."),
        (16, 16, "Doubling stops paying at 16 GPUs (75% sure): x."),
        (4, 16, "Doubling stops paying between 4 and 16 GPUs (75% sure): x."),
        (4, 32, "Where doubling stops paying is open: between 4 and 32 GPUs."),
        (
            *(16, None),
            "Where doubling stops paying is open: somewhere above 16 GPUs (none were "
            "measured).",
        ),
    ],
)
def test_the_knee_may_lie_anywhere(
    answered: Recommendation, lo: int | None, hi: int | None, sentence: str
) -> None:
    is_open = "open" in sentence
    knee = Knee(
        lo=lo,
        hi=hi,
        marginal_return=0.5,
        term=None if is_open else "x",
        probability_in_range=None if is_open else 0.75,
        largest_measured=16,
    )
    assert said(replace(answered, knee=knee), "knee") == [sentence]


def test_a_knee_that_is_unlikely_is_not_named(answered: Recommendation) -> None:
    knee = Knee(
        lo=16,
        hi=None,
        marginal_return=0.5,
        term=None,
        probability_in_range=0.3,
        largest_measured=16,
    )
    assert said(replace(answered, knee=knee), "knee") == [
        "Nothing measured, up to 16 GPUs, shows diminishing returns. Chance that they "
        "diminish by 32: 30%, not before 16."
    ]
    first = answered.rows[0].world_size
    assert said(replace(answered, knee=replace(knee, lo=first)), "knee") == [
        "Nothing measured, up to 16 GPUs, shows diminishing returns. Chance that they "
        "diminish by 32: 30%."
    ]


def test_ignored_trials_are_counted_by_reason(answered: Recommendation) -> None:
    busy = replace(
        answered, left_out=[LeftOut(("unsteady_clock",), 10)], num_observations=45
    )
    assert said(replace(busy, is_emulated=True), "ignored") == [
        "10 of 45 trials ignored: the computer was too busy to keep the declared times."
    ]
    several = [LeftOut(("shared_node",), 2), LeftOut(("preempted",), 1)]
    both = replace(
        busy, left_out=several, left_out_of_convergence=[LeftOut(("failed",), 1)]
    )
    assert said(both, "ignored") == [
        "3 of 45 trials ignored: other jobs ran on the node (2), preempted (1).",
        "1 of 45 trials ignored for samples to target: the trial failed.",
    ]
    sharded = replace(
        busy, left_out=(), left_out_of_convergence=[LeftOut(("sharded order",), 4)]
    )
    assert said(sharded, "ignored") == [
        "4 of 45 trials ignored for samples to target: with a sharded order they "
        "depend on the number of ranks."
    ]


def test_the_table_has_a_row_per_allocation(answered: Recommendation) -> None:
    columns = allocations(answered)
    assert [cells[0] for cells in columns.values()] == [
        *("GPUs", "time", "80%", "GPU-h", "efficiency", "next doubling"),
        *("basis", "fitted samples/s", "nodes", "batch"),
    ]
    assert columns["size"][1:] == ["1", "2", "4", "8", "16", "32"]
    assert columns["efficiency"][1] == "100%"
    assert [cells[5] for cells in columns.values()] == [
        *("16", "12.8 min", "12.5-13.0", "3.4", "82%", "-40% time +10% GPU-h"),
        *("measured", "6,520", "4x4", "512=32x16"),
    ]


def test_the_last_row_has_no_next_and_an_unknown_chance_is_empty() -> None:
    rows = planned((1, 2), chosen=2, measured_up_to=2)
    rows = (
        replace(rows[0], probability=0.2),
        replace(rows[1], next_time_change=None, next_gpu_hours_change=None),
    )
    columns = allocations(recommendation(rows, limits=("< 4 h",)))
    assert columns["next"][2] == ""
    assert columns["chance"] == ["chance", "20%", ""]


def test_parameters_tell_what_is_not_identified(answered: Recommendation) -> None:
    known = answered.parameters[0]
    open_one = replace(known, is_identified=False, remedy="Measure two nodes.")
    columns = parameters(replace(answered, parameters=(known, open_one)))
    first, second = list(zip(*columns.values(), strict=True))[1:]
    assert first == (
        *("resnet_cifar: compute_per_sample", "0.002", "0.0019 to 0.0021", "s", ""),
    )
    assert second[-1] == "Measure two nodes."


@pytest.mark.parametrize("home", [module, lines])
def test_the_examples_hold(home: ModuleType) -> None:
    assert doctest.testmod(home).failed == 0
