"""Histories of prices: how they are read, and what a job pays by them."""

from pathlib import Path

import numpy as np
import pytest
from sentences import refused

from scalelab.recommend.money.history import PriceHistory

HOUR = 3600.0
TEXT = """\
time, USD
2026-11-01T01:00:00Z, 0.3
2026-11-01T00:00:00+00:00, 0.1
2026-11-01T04:00:00, 9
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spot.csv"


@pytest.fixture
def history(path: Path) -> PriceHistory:
    path.write_text(TEXT)
    return PriceHistory.read(path)


def test_a_price_holds_until_the_next(history: PriceHistory) -> None:
    assert (history.name, history.currency) == ("spot.csv", "usd")
    assert history.times_s.tolist() == [0, HOUR, 4 * HOUR]
    assert history.amounts.tolist() == [0.1, 0.3, 9.0]
    assert history.mean == pytest.approx((0.1 + 3 * 0.3) / 4)
    assert history.hours() == pytest.approx([0.1, 0.3, 0.3, 0.3])


def test_a_job_pays_the_mean_over_its_time(history: PriceHistory) -> None:
    time_s = np.tile([1.0, HOUR, 4 * HOUR, 99 * HOUR], (400, 1))
    paid = history.over(time_s)
    assert paid.shape == time_s.shape
    assert set(paid[:, 0].round(6)) >= {0.1, 0.3}
    assert paid[:, 0].mean() == pytest.approx(history.mean, rel=0.01)
    # one that begins in the first hour sees both prices
    assert paid[:, 1].min() == pytest.approx(0.1, rel=0.05)
    assert len(set(paid[:, 1].round(6))) > 100
    assert paid[:, 2:] == pytest.approx(np.full((400, 2), history.mean))


def test_a_longer_job_pays_a_steadier_price() -> None:
    rng = np.random.default_rng(3)
    history = PriceHistory(
        name="h",
        currency="usd",
        times_s=np.arange(2001) * HOUR,
        amounts=np.exp(rng.normal(size=2001)),
    )
    spread = history.over(np.tile([HOUR, 10 * HOUR, 100 * HOUR], (400, 1))).std(axis=0)
    assert spread[0] > 2 * spread[1] > 4 * spread[2]


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("", "unreadable_prices", "spot.csv"),
        ("a,b\n1,2", "no_price_columns", "'a', 'b'"),
        ("time,usd,eur\n2026-01-01,1,2", "no_price_columns", "'time', 'usd', 'eur'"),
        ("time,usd\n2026-01-01,1", "too_few_prices", "1"),
        ("time,usd\n2026-01-01,1\n2026-01-01,1", "too_few_prices", "2"),
        ("time,usd\n2026-01-01,1\nnoon,1", "bad_price_line", "line 3: 'noon', '1'"),
        ("time,usd\n2026-01-01,0\n2026-01-02,1", "bad_price_line", "line 2"),
        ("time,usd\n2026-01-01,inf\n2026-01-02,1", "bad_price_line", "'inf'"),
    ],
)
def test_what_is_no_history_is_refused(
    path: Path, text: str, code: str, value: str
) -> None:
    path.write_text(text)
    with refused(code, value):
        PriceHistory.read(path)


def test_a_missing_history_is_refused(path: Path) -> None:
    with refused("unreadable_prices", "spot.csv", "No such file"):
        PriceHistory.read(path)
