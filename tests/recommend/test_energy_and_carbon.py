"""Energy and carbon of a job: columns, limits, and where they come from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import Golden, refused
from test_by_device import question
from test_on_spot import said
from test_unlike_devices import fact, unlike

from scalelab.inputs.numerals import Interval
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.answer.text import allocations
from scalelab.recommend.by_device import answer
from scalelab.recommend.question.objective import Constraints
from scalelab.session.answer import Answer
from scalelab.site.spot import AskedSpot

pytestmark = pytest.mark.slow

Asked = Callable[..., Recommendation]
WATTS = (("", 400.0),)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return sweep((1, 2, 4, 8, 16), per_node=1, seed=5, device_name="p2")


@pytest.fixture(scope="module")
def asked(frame: pd.DataFrame) -> Asked:
    def ask(
        rows: pd.DataFrame = frame,
        limits: dict[str, float] | None = None,
        **said: Any,
    ) -> Recommendation:
        constraints = Constraints(limits=limits or {})
        return answer(replace(question(limits=constraints), **said), rows, {})

    return ask


def amount(row: OutlookRow, name: str) -> Interval:
    found = row.amounts[name]
    assert found is not None
    return found


def test_they_follow_from_device_hours(asked: Asked, golden: Golden) -> None:
    found = asked(power=WATTS, pue=1.25, carbon_g_per_kwh=100.0)
    for row in found.rows:
        energy, carbon = amount(row, "energy"), amount(row, "carbon")
        assert energy.value == pytest.approx(0.5 * row.gpu_hours.value)
        assert energy.hi == pytest.approx(0.5 * row.gpu_hours.hi)
        assert carbon.value == pytest.approx(100 * energy.value)
        assert row.energy_source == "modelled"
    columns = allocations(found)
    assert columns["energy"][0] == "kWh (modelled)"
    assert columns["carbon"][0] == "g CO2e"
    assert "kWh (modelled)" in said(found, "takes")
    golden(said(found, "electricity"))
    values = Answer.of(found).to_json()["rows"][0]
    assert values["energy_kwh"]["value"] == amount(found.rows[0], "energy").value
    assert values["carbon_g"]["value"] == amount(found.rows[0], "carbon").value


def test_without_a_power_nothing_is_said(asked: Asked) -> None:
    found = asked(carbon_g_per_kwh=100.0)
    assert {row.energy_source for row in found.rows} == {None}
    assert not {"energy", "carbon"} & allocations(found).keys()
    assert said(found, "electricity") == ""


def test_more_watts_or_a_larger_pue_scale_both(asked: Asked) -> None:
    once = asked(power=WATTS, carbon_g_per_kwh=50.0)
    for factor, other in (
        (3.0, asked(power=(("p2", 1200.0),), carbon_g_per_kwh=50.0)),
        (2.0, asked(power=WATTS, pue=2.0, carbon_g_per_kwh=50.0)),
    ):
        for row, more in zip(once.rows, other.rows, strict=True):
            for name in ("energy", "carbon"):
                scaled = factor * amount(row, name).value
                assert amount(more, name).value == pytest.approx(scaled)
            assert more.time_s == row.time_s


@pytest.mark.parametrize("name", ["energy", "carbon"])
def test_a_looser_limit_is_never_slower(asked: Asked, name: str) -> None:
    terms = {"power": WATTS, "carbon_g_per_kwh": 200.0}
    least = min(amount(row, name).value for row in asked(**terms).rows)
    times = []
    for factor in (1.1, 1.3, 2.0):
        found = asked(limits={name: factor * least}, **terms)
        assert found.meets_constraints
        assert amount(found.chosen, name).value <= factor * least
        times.append(found.chosen.time_s.value)
    assert times == sorted(times, reverse=True)


def test_the_least_that_can_be_met_is_said(asked: Asked) -> None:
    found = asked(limits={"energy": 1e-3, "time": 1e9}, power=WATTS)
    assert not found.meets_constraints
    (limit,) = (
        each
        for each in fact(found, "nearest").values["limits"]
        if each["resource"] == "energy"
    )
    assert "Least energy at 90%" in said(found, "nearest")
    again = asked(limits={"energy": limit["amount"] * 1.001, "time": 1e9}, power=WATTS)
    assert again.meets_constraints


def test_a_limit_without_a_power_is_refused(asked: Asked) -> None:
    with refused("limit_without_price", "max_energy='3 kWh'"):
        asked(limits={"energy": 3.0})


def test_counters_count_for_more_than_the_site_and_scatter_as_they_did(
    asked: Asked, frame: pd.DataFrame
) -> None:
    rng = np.random.default_rng(1)
    drawn = np.where(frame["world_size"] == 1, 300.0, 220.0)
    drawn = drawn * rng.uniform(0.95, 1.05, len(frame))
    counted = frame.assign(device_power_w=drawn, energy_source="measured")
    found = asked(counted)
    assert {row.energy_source for row in found.rows} == {"measured"}
    assert allocations(found)["energy"][0] == "kWh"
    for row in found.rows:
        expected = 0.3 if row.world_size == 1 else 0.22
        used = amount(row, "energy")
        assert used.value / row.gpu_hours.value == pytest.approx(expected, rel=0.05)
        spread = row.gpu_hours.hi / row.gpu_hours.lo
        assert used.hi / used.lo >= 0.99 * spread
    assert "Energy is measured: " in said(found, "electricity")


def test_the_power_of_a_device_that_was_not_measured_is_refused(asked: Asked) -> None:
    with refused("device_not_measured", "'p3'", "'3W'}"):
        asked(power=(("p3", 3.0),))


def test_devices_have_powers_of_their_own_and_one_carbon_limit(golden: Golden) -> None:
    limits = Constraints(limits={"carbon": 1e9})
    asked = question(limits=limits, power=(("c4", 100.0), ("p2", 300.0)))
    found = answer(replace(asked, carbon_g_per_kwh=400.0), unlike(), {})
    for row in found.rows:
        watts = {"c4": 100.0, "p2": 300.0}[row.device]
        assert amount(row, "energy").value == pytest.approx(
            watts / 1000 * row.gpu_hours.value
        )
    golden(said(found, "electricity"))
    assert found.meets_constraints


def test_interruptions_take_energy_too(asked: Asked) -> None:
    terms = AskedSpot.model_validate({"interrupted_every": "6h"})
    found = asked(power=WATTS, spot=terms)
    by_size: dict[int, dict[str, float]] = {}
    for row in found.rows:
        used = by_size.setdefault(row.world_size, {})
        used[row.device] = amount(row, "energy").value
    for used in by_size.values():
        assert used["p2 spot"] > used["p2"]


def test_what_the_sweep_took_is_said(asked: Asked, frame: pd.DataFrame) -> None:
    found = asked(power=WATTS, carbon_g_per_kwh=100.0)
    hours = frame["allocated_gpu_s"].sum() / 3600
    assert found.sweep_spent["energy"] == pytest.approx(0.4 * hours)
    assert found.sweep_spent["carbon"] == pytest.approx(40 * hours)
    assert "kWh (modelled)" in said(found, "sweep_cost")
    assert Answer.of(found).to_json()["sweep_spent"] == found.sweep_spent
