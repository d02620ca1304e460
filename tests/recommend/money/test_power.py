"""Power: as asked, as counters measured it, or as the site says."""

import numpy as np
import pandas as pd
import pytest
from sentences import Golden, refused

from scalelab.errors import SpecError
from scalelab.kinds.resources import CARBON, ENERGY, MONEY
from scalelab.recommend.money.power import Power, measured_power, power_of
from scalelab.recommend.money.prices import Price
from scalelab.recommend.money.trials import in_all, trials_take
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints
from scalelab.site.choice import site_of

P2 = DeviceKind(
    device_type="cuda", device_name="NVIDIA K80", node_group="p2", label="p2"
)
C4 = DeviceKind(device_type="cpu", node_group="c4", label="c4")
SITE = site_of({"name": "alpine", "device_type": "cuda", "power_w": "0.3kW"})
NONE = pd.DataFrame({"world_size": [1.0]})


def rows(**columns: object) -> pd.DataFrame:
    """Return runs on 1 and 4 devices that draw 200 and 150 W each."""
    frame = pd.DataFrame(
        {
            "kind": "throughput",
            "world_size": [1, 1, 4, 4],
            "device_power_w": [200.0, 220.0, 150.0, 160.0],
            "energy_source": "measured",
        }
    )
    return frame.assign(**columns)


def said(watts: float, source: str = "modelled") -> Power:
    return Power(by_size={1.0: np.array([watts])}, source=source, said_by="as given")


def test_counters_tell_the_power_of_each_number_of_devices() -> None:
    found = measured_power(rows())
    assert found is not None
    assert (found.source, found.said_by) == ("measured", "by the rows")
    assert found.by_size[1] == pytest.approx([200, 220])
    assert found.by_size[4] == pytest.approx([150, 160])
    draws = found.draws(np.array([1, 2, 3, 4, 64]))
    assert draws.shape == (400, 5)
    assert np.median(draws, axis=0) == pytest.approx([210, 210, 155, 155, 155])
    assert np.quantile(draws[:, 0], [0, 1]) == pytest.approx([200, 220], rel=0.01)


def test_joules_of_another_programs_table_are_over_the_time_devices_were_held() -> None:
    joules = {
        "device_power_w": np.nan,
        "energy_j": [2.0e4, 2.2e4, 6.0e4, 6.4e4],
        "allocated_gpu_s": [80, 80, 320, 320],
    }
    found = measured_power(rows(kind="imported", **joules))
    assert found is not None
    assert found.by_size[1] == pytest.approx([250, 275])
    assert found.by_size[4] == pytest.approx([187.5, 200])
    # those of a trial hold its start-up, too
    assert measured_power(rows(**joules)) is None


def test_what_a_table_calls_modelled_stays_so() -> None:
    found = measured_power(rows(energy_source=["measured", "modelled", None, None]))
    assert found is not None
    assert found.source == "modelled"


@pytest.mark.parametrize("missing", ["device_power_w", "world_size"])
def test_without_watts_nothing_is_measured(missing: str) -> None:
    assert measured_power(rows().drop(columns=missing)) is None


def test_what_is_asked_counts_for_more_than_counters_and_those_than_the_site(
    golden: Golden,
) -> None:
    powers = (("", 90.0), ("p2", 250.0), ("nvidia k80", 260.0))
    asked = power_of(P2, rows(), powers, SITE)
    measured, of_site = power_of(P2, rows(), (), SITE), power_of(P2, NONE, (), SITE)
    assert asked is not None
    assert measured is not None
    assert of_site is not None
    assert asked.draws(np.array([8])).max() == 260.0  # the closest name
    assert (asked.source, measured.source) == ("modelled", "measured")
    assert of_site.draws(np.array([8])).max() == 300.0
    golden(of_site.said_by)
    other = power_of(C4, NONE, powers, SITE)
    assert other is not None
    assert other.draws(np.array([8])).max() == 90.0
    assert power_of(C4, NONE, (), None) is None


def test_several_powers_of_the_same_devices_are_refused() -> None:
    for name in ("", "p2"):
        with pytest.raises(SpecError, match=r"several powers .* 250 W"):
            power_of(P2, rows(), ((name, 250.0), (name, 300.0)), SITE)
    alike = power_of(P2, rows(), (("p2", 250.0), ("p2", 250.0), ("", 9.0)), SITE)
    assert alike is not None
    assert alike.draws(np.array([8])).max() == 250.0


def test_energy_and_carbon_follow_from_power() -> None:
    limits = Constraints(power=said(250.0), pue=1.2, carbon_g_per_kwh=400.0)
    hours = np.array([[2.0, 1.0]] * 400)
    spent = limits.spending(hours * 3600, np.array([1, 4]), np.array([1, 1]))
    assert spent.of(ENERGY)[0] == pytest.approx([0.6, 1.2])
    assert spent.of(CARBON)[0] == pytest.approx([240, 480])
    thrice = Constraints(power=said(750.0), pue=1.2, carbon_g_per_kwh=400.0)
    more = thrice.spending(hours * 3600, np.array([1, 4]), np.array([1, 1]))
    for each in (ENERGY, CARBON):
        assert more.of(each) == pytest.approx(3 * spent.of(each))


def test_carbon_is_not_known_without_a_power_or_without_its_rate() -> None:
    place = (np.ones((400, 1)), np.array([1]), np.array([1]))
    assert CARBON not in Constraints(carbon_g_per_kwh=4.0).spending(*place).known
    only = Constraints(power=said(9.0)).spending(*place).known
    assert ENERGY in only
    assert CARBON not in only
    with refused("limit_without_price", "max_energy='3 kWh'"):
        Constraints(limits={"energy": 3.0}).spending(*place)
    with refused("limit_without_price", "max_carbon='3 g CO2e'", "carbon_g_per_kwh"):
        Constraints(limits={"carbon": 3.0}).spending(*place)


def test_trials_take_money_energy_and_carbon() -> None:
    limits = Constraints(
        price=Price(amount=2.0, minimum_s=3600.0),
        power=said(500.0),
        carbon_g_per_kwh=100.0,
        limits={"money": 1.0},
    )
    held_s = np.array([1800.0, 3600.0, np.nan])
    found = trials_take(limits, held_s, np.array([1, 4, 2]), np.array([1, 1, 1]))
    assert [*found] == ["money", "energy", "carbon"]
    assert found["money"] == pytest.approx(9.0)
    assert found["energy"] == pytest.approx(2.25)
    assert found["carbon"] == pytest.approx(225.0)
    assert trials_take(limits, held_s[2:], np.array([2]), np.array([1])) == {}
    assert MONEY.in_words(found["money"], limits.units("GPU-h")) == "9 usd"


def test_only_what_is_known_of_all_parts_is_added_up() -> None:
    parts = [{"money": 1.0, "energy": 2.0}, {"energy": 3.0, "carbon": 1.0}]
    assert in_all(parts) == {"energy": 5.0}
    assert in_all([]) == {}
