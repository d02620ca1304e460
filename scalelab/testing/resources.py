"""What every resource promises."""

import re

import numpy as np
import pytest

from scalelab.errors import SpecError
from scalelab.kinds.resources import (
    CARBON_G_PER_KWH,
    POWER_W,
    PRICE_PER_HOUR,
    Resource,
    Units,
    Usage,
    read_limits,
)
from scalelab.testing.installed import RowContract

_NO_AMOUNTS = ("", "much", "-1", "0")


class ResourceContract(RowContract):
    """What every resource promises."""

    registry_path = "scalelab.kinds.resources:RESOURCES"

    @staticmethod
    def usage(**rates: np.ndarray) -> Usage:
        """Return two draws of the time of a job on each of three allocations."""
        return Usage(
            time_s=np.array([[3600.0, 1800.0, 900.0], [7200.0, 3600.0, 1800.0]]),
            world_size=np.array([1, 2, 8]),
            num_nodes=np.array([1, 1, 2]),
            rates=rates,
        )

    def test_its_names_are_those_of_options_and_fields(self, row: Resource) -> None:
        """They become options of the command line, arguments and fields of JSON."""
        assert re.fullmatch(r"max_[a-z][a-z_]*", row.limit)
        assert row.field.isidentifier()
        assert row.help
        assert row.least

    def test_its_limit_is_read_from_text_and_from_a_number(self, row: Resource) -> None:
        """``example`` is a text that ``parse`` reads."""
        assert 0 < read_limits({row.limit: row.example})[row.name] < float("inf")
        assert read_limits({row.max_field: 20}) == {row.name: 20.0}

    @pytest.mark.parametrize("text", _NO_AMOUNTS)
    def test_a_limit_that_is_no_amount_is_refused(
        self, row: Resource, text: str
    ) -> None:
        """``parse`` raises a SpecError that holds the text and says what to write."""
        with pytest.raises(SpecError, match=f"^{row.limit}: .*{re.escape(text)}"):
            read_limits({row.limit: text})

    def test_amounts_belong_to_allocations(self, row: Resource) -> None:
        """One for each draw and allocation, more where the job takes longer."""
        rates = (PRICE_PER_HOUR, POWER_W, CARBON_G_PER_KWH)
        amount = row.amount(
            self.usage(**dict.fromkeys(rates, np.array([2.0, 4.0, 16.0])))
        )
        assert amount is not None
        assert amount.shape == (2, 3)
        assert np.all(amount > 0)
        assert np.all(amount[1] >= amount[0])

    def test_what_cannot_be_computed_says_what_is_missing(self, row: Resource) -> None:
        """Where no rate is known, None needs ``missing``."""
        assert row.amount(self.usage()) is not None or row.missing

    def test_it_is_written_with_a_unit(self, row: Resource) -> None:
        """``unit`` returns its size, above 0, and its name."""
        for amount in (0.5, 20.0, 1e6):
            scale, unit = row.unit(amount, Units("GPU-h"))
            assert scale > 0
            assert row.in_words(amount, Units("GPU-h")).endswith(f" {unit}")
