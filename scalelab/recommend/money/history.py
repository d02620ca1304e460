"""Price histories: what interruptible nodes cost in the past, and how steadily."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.money import CURRENCIES
from scalelab.inputs.problems import one_of, shown
from scalelab.laws.interval import SEED, levels

_TIME = "time"
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PriceHistory:
    """Prices per hour that each held until the next one; the last marks the end."""

    name: str
    currency: str
    times_s: np.ndarray  # shape (n,), increasing, from 0
    amounts: np.ndarray  # shape (n,)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a CSV with a column of times and one of prices, named by its currency.

        Raises
        ------
        SpecError
            If it cannot be read, has other columns, or less than two times.
        """
        try:
            table = pd.read_csv(
                path, dtype=str, skipinitialspace=True, keep_default_na=False
            )
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path} cannot be read: {error}", code="unreadable_prices"
            ) from error

        columns = {str(name).strip().lower(): name for name in table.columns}
        currencies = [name for name in columns if name in CURRENCIES]
        if _TIME not in columns or len(currencies) != 1:
            raise SpecError(
                f"{path} has the columns {', '.join(map(shown, table.columns))}. A "
                f"price history has {_TIME} and one currency, such as usd. "
                f"{one_of(CURRENCIES, next(iter(columns), ''))}",
                code="no_price_columns",
            )

        (currency,) = currencies
        times = pd.to_datetime(
            table[columns[_TIME]], utc=True, errors="coerce", format="ISO8601"
        )
        amounts = pd.to_numeric(table[columns[currency]], errors="coerce")

        wrong = times.isna() | ~(amounts > 0) | ~np.isfinite(amounts)
        if wrong.any():
            line = int(np.flatnonzero(wrong)[0])
            raise SpecError(
                f"{path}, line {line + 2}: {', '.join(map(shown, table.iloc[line]))} "
                "is no time with a positive price. Write, for example, "
                "2026-11-01T08:00:00Z,0.12.",
                code="bad_price_line",
            )

        order = np.argsort(times.to_numpy(), kind="stable")
        since_s = (times - times.min()).dt.total_seconds().to_numpy(float)[order]
        if len(since_s) < 2 or since_s[-1] <= 0:
            raise SpecError(
                f"{path} holds {len(since_s)} times. Give at least two.",
                code="too_few_prices",
            )

        return cls(
            name=path.name,
            currency=currency,
            times_s=since_s,
            amounts=amounts.to_numpy(float)[order],
        )

    @property
    def mean(self) -> float:
        """The mean price over time."""
        return float(self._paid(self.times_s[-1]) / self.times_s[-1])

    def over(self, time_s: np.ndarray) -> np.ndarray:
        """Return the mean price of jobs that begin at a random time of the history.

        ``time_s`` and what is returned have the shape (n_draws, n_rows). A job longer
        than the history pays its mean.
        """
        last_s = self.times_s[-1]
        length_s = np.minimum(time_s, last_s)
        start_s = np.resize(levels(SEED + 14), (len(time_s), 1)) * (last_s - length_s)
        paid = self._paid(start_s + length_s) - self._paid(start_s)
        return np.asarray(paid / length_s)

    def hours(self) -> np.ndarray:
        """Return the mean price of each hour."""
        ends_s = np.append(np.arange(0, self.times_s[-1], _HOUR_S), self.times_s[-1])
        return np.asarray(np.diff(self._paid(ends_s)) / np.diff(ends_s))

    def _paid(self, until_s: np.ndarray) -> np.ndarray:
        steps = self.amounts[:-1] * np.diff(self.times_s)
        paid = np.append(0.0, np.cumsum(steps))
        return np.asarray(np.interp(until_s, self.times_s, paid))
