"""One answer where CPU nodes stand beside GPUs, each with its price."""

import re

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep
from sentences import Golden, refused
from test_by_device import question

from scalelab.inputs.quantities import parse_duration
from scalelab.inputs.target import Target
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.answer.text import allocations, answer_text
from scalelab.recommend.by_device import answer
from scalelab.recommend.money.prices import GIVEN, Quote
from scalelab.recommend.question.objective import Constraints
from scalelab.session.answer import Answer
from scalelab.site.prices import PriceEntry

pytestmark = pytest.mark.slow

SLOWER = 6.0  # a node of CPUs than a GPU
PRICES = {"c4": 0.39, "p2": 0.9}


def unlike(**columns: object) -> pd.DataFrame:
    cpus = sweep(
        (1, 2, 4, 8), per_node=1, seed=3, device_type="cpu", device_name="c4", **columns
    )
    cpus["step_time_s"] *= SLOWER
    gpus = sweep((1, 2, 4), seed=4, device_name="p2", **columns)
    return pd.concat([cpus, gpus], ignore_index=True)


def quotes(prices: dict[str, float], **said: object) -> tuple[Quote, ...]:
    return tuple(
        Quote(
            entry=PriceEntry(device=name, on_demand=amount, **said),
            rank=GIVEN,
            said_by="as given",
        )
        for name, amount in prices.items()
    )


def asked(
    frame: pd.DataFrame,
    prices: dict[str, float] = PRICES,
    confidence: float = 0.9,
    target: Target | None = None,
    **limits: float,
) -> Recommendation:
    constraints = Constraints(limits=limits, confidence=confidence, target=target)
    return answer(question(limits=constraints, quotes=quotes(prices)), frame, {})


def cost(row: OutlookRow) -> float:
    assert row.cost is not None
    return row.cost.value


def fact(found: Recommendation, kind: str) -> Fact:
    return next(each for each in found.facts if each.kind == kind)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return unlike()


@pytest.fixture(scope="module")
def free(frame: pd.DataFrame) -> Recommendation:
    return asked(frame)


def test_rows_of_all_stand_side_by_side(free: Recommendation) -> None:
    assert [row.device for row in free.rows] == sorted(row.device for row in free.rows)
    assert {row.device for row in free.rows} == {"c4", "p2"}
    assert sum(row.is_chosen for row in free.rows) == 1
    for device in ("c4", "p2"):
        own = [row for row in free.rows if row.device == device]
        (base,) = (row for row in own if row.is_baseline)
        assert base.scaling_efficiency.value == 1.0
        for row in own:
            assert cost(row) == pytest.approx(row.gpu_hours.value * PRICES[device])


def test_what_is_worth_considering_is_beaten_by_no_device(free: Recommendation) -> None:
    for row in free.rows:
        beaten = any(
            other.time_s.value <= row.time_s.value
            and cost(other) <= cost(row)
            and (other.time_s.value, cost(other)) != (row.time_s.value, cost(row))
            for other in free.rows
        )
        assert row.is_pareto is not beaten


def test_the_choice_is_the_cheapest_of_what_each_would_take(
    free: Recommendation, golden: Golden
) -> None:
    (other,) = free.elsewhere.values()
    assert cost(free.chosen) < cost(other)
    chances = fact(free, "against_devices").values["chances"]
    assert chances["cheaper"][other.device] > 0.9
    golden(free.objective)


def test_the_words_of_each_device_are_its_own(free: Recommendation) -> None:
    text = answer_text(free, 100, explain=True)
    assert re.search(r"On c4 instead: \d+ CPU slots? \(\dx1\)", " ".join(text.split()))
    assert re.search(r"Sweep cost \S+ device-h, ", text)
    assert "Price of c4: 0.39 usd per core-h, as given. Price of p2: 0.9 usd per" in (
        " ".join(text.split())
    )
    titles = [cells[0] for cells in allocations(free).values()]
    assert titles[:5] == ["device", "count", "time", "80%", "device-h"]
    assert "GPU" not in " ".join(
        sentence for sentence in sentences(free)["elsewhere"] if "c4" in sentence
    )
    written = free.to_json()
    assert written["devices"]["c4"] == {"device": "CPU slot", "hour": "core-h"}
    assert {row["device"] for row in written["rows"]} == {"c4", "p2"}
    assert "device" in Answer.of(free).to_frame()


def test_the_order_of_the_rows_changes_nothing(
    frame: pd.DataFrame, free: Recommendation
) -> None:
    order = np.random.default_rng(1).permutation(len(frame))
    again = asked(frame.iloc[order].reset_index(drop=True))
    assert [row.device for row in again.rows] == [row.device for row in free.rows]
    assert again.chosen.allocation == free.chosen.allocation
    assert again.chosen.device == free.chosen.device
    assert cost(again.chosen) == pytest.approx(cost(free.chosen), rel=1e-3)
    swapped = asked(frame, dict(reversed([*PRICES.items()])))
    assert swapped.to_json() == free.to_json()


def test_prices_scale_costs_and_choose_the_same(
    frame: pd.DataFrame, free: Recommendation
) -> None:
    thrice = asked(frame, {name: 3 * price for name, price in PRICES.items()})
    assert thrice.chosen.allocation == free.chosen.allocation
    for one, three in zip(free.rows, thrice.rows, strict=True):
        assert cost(three) == pytest.approx(3 * cost(one))
        assert three.time_s == one.time_s


def test_a_cheap_device_is_chosen_where_it_is_cheap(frame: pd.DataFrame) -> None:
    assert asked(frame, {"c4": 0.01, "p2": 0.9}).chosen.device == "c4"
    assert asked(frame, {"c4": 9.0, "p2": 0.9}).chosen.device == "p2"


@pytest.mark.parametrize(
    "limit", ["time", pytest.param("money", marks=pytest.mark.repetition)]
)
def test_a_looser_limit_never_worsens_what_is_chosen(
    frame: pd.DataFrame, free: Recommendation, limit: str
) -> None:
    amounts = [row.time_s.value for row in free.rows]
    if limit == "money":
        amounts = [cost(row) for row in free.rows]
    last = np.inf
    for share in (0.5, 1.05, 1.5, 2.5, 5.0):
        found = asked(frame, **{limit: share * min(amounts)})
        if found.meets_constraints:
            chosen = found.chosen
            taken = cost(chosen) if limit == "time" else chosen.time_s.value
            assert taken <= last * 1.05 + 1e-9, share  # within 5% rows are a tie
            last = min(last, taken)
    assert np.isfinite(last)


@pytest.mark.parametrize(
    "limits",
    [
        {"time": 60.0, "money": 1e4},
        pytest.param({"time": 60.0}, marks=pytest.mark.repetition),
    ],
)
def test_the_nearest_deadline_that_is_said_can_be_met(
    frame: pd.DataFrame, limits: dict[str, float]
) -> None:
    found = asked(frame, **limits)
    assert not found.meets_constraints
    near = fact(found, "nearest").values["limits"][0]
    assert near["amount"] > 60.0
    said = parse_duration(near["needed"])
    assert near["amount"] <= said <= 1.1 * near["amount"]
    assert asked(frame, **{**limits, "time": said}).meets_constraints
    shorter = 0.98 * near["amount"]
    assert not asked(frame, **{**limits, "time": shorter}).meets_constraints
    assert f"Shortest deadline at 90%{' within' if len(limits) > 1 else ''}" in (
        " ".join(sentences(found)["nearest"])
    )


def test_the_nearest_budget_is_of_all_devices(frame: pd.DataFrame) -> None:
    found = asked(frame, money=0.01)
    (near,) = fact(found, "nearest").values["limits"]
    assert near["device"] in PRICES
    assert asked(frame, money=1.01 * near["amount"]).meets_constraints


def test_a_limit_of_device_hours_is_refused(frame: pd.DataFrame) -> None:
    with refused("device_hours_of_several", "max_gpu_hours 9", "c4, p2") as caught:
        asked(frame, device_hours=9.0)
    assert "select={'device_name': 'c4'}" in str(caught.value.hint)


def test_without_a_price_devices_are_compared_by_time(
    frame: pd.DataFrame, golden: Golden
) -> None:
    found = asked(frame, {"p2": 0.9})
    golden(found.objective)
    assert fact(found, "by_time_alone").values == {"devices": ["c4"]}
    limited = asked(frame, {"p2": 0.9}, money=1e6)
    assert {row.device for row in limited.rows} == {"p2"}
    why = fact(limited, "device_not_compared").values
    assert why["name"] == "c4"
    assert "needs a price" in why["why"]


def test_samples_to_a_target_hold_on_every_device() -> None:
    lessons = convergence().assign(device_type="cuda", device_name="p2")
    frame = pd.concat([unlike(lr_rule="sqrt"), lessons], ignore_index=True)
    found = asked(frame, target=Target.parse("val_acc >= 0.9"))
    rows = {found.chosen.device: found.chosen, **found.elsewhere}
    assert rows.keys() == {"c4", "p2"}
    same = [row.samples.value for row in rows.values()]
    assert max(same) <= 1.6 * min(same)


def test_a_device_may_be_selected_whatever_others_cost(
    frame: pd.DataFrame, golden: Golden
) -> None:
    select = {"device_name": "c4"}
    found = answer(question(select=select, quotes=quotes(PRICES)), frame, {})
    assert {row.device for row in found.rows} == {"c4"}
    assert found.devices == {}
    golden(str(found.price))
    with refused("device_not_measured", "c5", "c4"):
        answer(question(select=select, quotes=quotes({"c5": 1.0})), frame, {})


def test_what_is_worth_granting_holds_the_choice(frame: pd.DataFrame) -> None:
    found = asked(frame, time=1e7)
    granted = fact(found, "worth_granting").values
    sizes = {row.world_size for row in found.alike}
    assert {*granted.values()} <= sizes
    assert granted["least"] <= granted["best"] <= granted["most"]
    assert granted["best"] == found.chosen.world_size
