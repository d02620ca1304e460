import doctest
from dataclasses import replace
from itertools import chain
from types import ModuleType

import pytest
from made_up_runs import outlook_row, planned, recommendation
from sentences import Golden

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


def test_the_first_sentence_answers(answered: Recommendation, golden: Golden) -> None:
    use = "16 A100 (4 nodes x 4), global batch 512 = 32 x 16"
    assert said(answered, "use") == [f"Use {use}"]
    short = replace(answered, meets_constraints=False, limits=("< 5 min", "< 1 usd"))
    golden(*said(short, "unmet", "use"))


def test_where_nothing_was_asked_the_time_is_not_sure(
    answered: Recommendation, golden: Golden
) -> None:
    unsure = replace(answered, meets_constraints=False, confidence=0.9)
    golden(*said(unsure, "unmet", "use"))


def test_the_rest_follows_in_order(answered: Recommendation, golden: Golden) -> None:
    golden(*[*chain(*sentences(answered).values())][1:])


def test_what_is_spent_and_the_chance_are_named(golden: Golden) -> None:
    cost = Interval(value=12.5, lo=12.0, hi=13.0)
    row = outlook_row(1, 64, is_chosen=True, amounts={"money": cost}, probability=0.99)
    limited = {"time": 4 * 3600.0, "money": 20.0}
    answer = recommendation([row], limits=("< 4 h", "< 20 usd"), limited=limited)
    (takes,) = said(answer, "takes")
    assert takes.endswith("2.9 GPU-h, 12.5 usd")
    golden(*said(answer, "chance"))
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


def test_a_knee_that_is_unlikely_is_not_named(
    answered: Recommendation, golden: Golden
) -> None:
    knee = Knee(
        lo=16,
        hi=None,
        marginal_return=0.5,
        term=None,
        probability_in_range=0.3,
        largest_measured=16,
    )
    golden(*said(replace(answered, knee=knee), "knee"))
    first = answered.rows[0].world_size
    golden(*said(replace(answered, knee=replace(knee, lo=first)), "knee"))


def test_ignored_trials_are_counted_by_reason(
    answered: Recommendation, golden: Golden
) -> None:
    busy = replace(
        answered, left_out=[LeftOut(("unsteady_clock",), 10)], num_observations=45
    )
    golden(*said(replace(busy, is_emulated=True), "ignored"))
    several = [LeftOut(("shared_node",), 2), LeftOut(("preempted",), 1)]
    both = replace(
        busy, left_out=several, left_out_of_convergence=[LeftOut(("failed",), 1)]
    )
    golden(*said(both, "ignored"))
    sharded = replace(
        busy, left_out=(), left_out_of_convergence=[LeftOut(("sharded order",), 4)]
    )
    golden(*said(sharded, "ignored"))


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
