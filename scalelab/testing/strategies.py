"""What every strategy promises."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategy import Strategy, TrialSizes
from scalelab.testing.installed import RowContract


class StrategyContract(RowContract):
    """What every strategy promises.

    ``accepted`` are options with which a trial on two nodes with four devices each and
    a local batch of 64 can run.
    """

    registry_path = "scalelab.kinds.strategies:STRATEGIES"
    accepted: ClassVar[Mapping[str, Scalar]] = {}

    def test_options_have_defaults_and_say_what_they_are(self, row: Strategy) -> None:
        """Messages about wrong values end with the description."""
        assert row.Options().model_dump().keys() == {*row.options}
        for name, field in row.Options.model_fields.items():
            assert field.description, name
        assert {*row.needed_options} <= {*row.options}

    def test_options_are_read_from_those_of_a_trial(self, row: Strategy) -> None:
        """Options of others are there too, and a command's values may be any."""
        foreign: dict[str, Scalar] = {"an_option_of_nobody": 1}
        assert row.Options.of(foreign) == row.Options()
        unlike: dict[str, Scalar] = dict.fromkeys(row.options, "as the user likes")
        row.Options.of(unlike)

    def test_wrong_options_are_refused_by_name(self, row: Strategy) -> None:
        """No option takes a list, which YAML can hold within a list of values."""
        needed: dict[str, Any] = {name: (1,) for name in row.needed_options}
        for name in row.options:
            listed = {**needed, name: ([],)}
            with pytest.raises(SpecError, match=rf"options\.{name}"):
                row.check_options(listed)

    def test_a_missing_option_is_named(self, row: Strategy) -> None:
        """Where it cannot do without an option, the message says which."""
        for name in row.needed_options:
            with pytest.raises(SpecError, match=rf"{row.name} needs options\.{name}"):
                row.check_options({})
            break
        else:
            row.check_options({})

    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 64])
    def test_it_divides_the_ranks_or_says_why_not(
        self, row: Strategy, world_size: int
    ) -> None:
        """The message names the strategy."""
        size, problem = 1, row.name
        try:
            size = row.data_parallel_size(world_size, self.accepted)
        except SpecError as error:
            problem = str(error)
        assert 1 <= size <= world_size
        assert row.name in problem

    def test_it_accepts_some_trial(self, row: Strategy) -> None:
        """``accepted`` are options of one."""
        row.check(
            TrialSizes(
                allocation=Allocation(devices_per_node=(4, 4)),
                local_batch_size=64,
                options=self.accepted,
            )
        )
        assert row.data_parallel_size(8, self.accepted) >= 1

    def test_options_that_count_are_among_those_given(self, row: Strategy) -> None:
        """What is effective is given; what alters is the strategy's own."""
        given = {**row.Options().model_dump(exclude_none=True), "of_the_workload": 2}
        effective = row.effective_options(given)
        assert effective.items() <= given.items()
        assert "of_the_workload" in effective
        assert row.altering_options(given).keys() <= {*row.options}

    def test_its_counts_are_counts(self, row: Strategy) -> None:
        """A cycle has steps, and a single worker waits for nobody."""
        assert row.cycle(self.accepted) >= 1
        for world_size in (1, 8):
            assert row.num_servers(world_size, self.accepted) >= 0
            assert row.steps_in_flight(world_size, self.accepted) >= 1
        assert row.steps_in_flight(1, self.accepted) == 1

    def test_stale_gradients_do_not_factorise(self, row: Strategy) -> None:
        """Where ranks step from different weights, their number matters."""
        assert row.is_synchronous or not row.factorises
