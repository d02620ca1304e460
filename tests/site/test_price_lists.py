from pathlib import Path

import pytest

from scalelab.errors import SpecError
from scalelab.site.prices import read_prices

LIST = """
- {device: c4, on_demand: 0.39, spot: 0.12, per: node_hour, currency: usd,
   minimum_s: 60, source: "https://example.org/prices", date: 2026-11-01}
- {node: p2, on_demand: 0.9eur}
- {on_demand: $2}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prices.yaml"


def test_a_list_is_read(path: Path) -> None:
    path.write_text(LIST)
    first, second, third = read_prices(path)
    assert first.spot is not None
    assert (first.device, first.on_demand, first.spot.price) == ("c4", 0.39, 0.12)
    assert (first.per, first.minimum_s, str(first.date)) == (
        *("node_hour", 60, "2026-11-01"),
    )
    assert [each.unit for each in (first, second, third)] == ["usd", "eur", "usd"]
    assert second.per == "device_hour"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds nothing. It must be a list: each entry begins with '- '."),
        ("on_demand: 2", "holds a dict. It must be a list"),
        ("[]", "holds no price. Write a list of entries."),
        ("- {device: c4}", r"prices\[0\].on_demand is missing. The price, such as"),
        ("- {on_demand: 0}", r"prices\[0\].on_demand: 0 is not a price: it must be"),
        ("- {on_demand: 2, per: week}", r"prices\[0\].per='week' is not known. Valid"),
        (
            "- {on_demand: 2, currency: xyz}",
            r"prices\[0\].currency: the currency 'xyz' is not known. Valid: usd, eur",
        ),
        (
            "- {on_demand: 2eur, currency: usd}",
            "on_demand=2eur, spot=None and currency=usd are of several currencies",
        ),
        ("- {on_demand: 2, date: yesterday}", r"prices\[0\].date='yesterday' has the"),
        ("- {on_demand: 2, minimum_s: -1}", r"minimum_s=-1 must be at least 0"),
        ("- {on_demnd: 2}", "unknown key 'prices.0..on_demnd'. Did you mean 'on_dem"),
    ],
)
def test_a_wrong_list_is_refused(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        read_prices(path)


def test_a_missing_list_is_refused(path: Path) -> None:
    with pytest.raises(SpecError, match=r"prices.yaml cannot be read: No such file"):
        read_prices(path)
