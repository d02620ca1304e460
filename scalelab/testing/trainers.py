"""What every trainer promises."""

from pathlib import Path

import pytest

from scalelab.errors import SpecError
from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.trainers import Trainer
from scalelab.testing.installed import RowContract


class TrainerContract(RowContract):
    """What every trainer promises. Where it runs, its framework is installed."""

    registry_path = "scalelab.kinds.trainers:TRAINERS"

    def test_what_it_names_by_path_can_be_imported(self, row: Trainer) -> None:
        """Ranks call ``entry``."""
        assert callable(imported(row.entry))

    def test_its_strategies_are_known(self, row: Trainer) -> None:
        """It runs at least one, and accepts each that it names."""
        assert row.strategies
        for name in row.strategies:
            assert name in STRATEGIES
            row.check_strategy(name)
        with pytest.raises(SpecError, match="no_such_strategy"):
            row.check_strategy("no_such_strategy")

    def test_its_workloads_are_accepted_by_name(self, row: Trainer) -> None:
        """A name that stands for none is refused with it."""
        for name in row.workloads:
            row.check_name(name)
        with pytest.raises(SpecError, match="no_such_workload"):
            row.check_name("no_such_workload")

    def test_what_is_known_of_a_workload_is_consistent(self, row: Trainer) -> None:
        """Parameters that facts name exist; metrics are those of its names."""
        for workload, facts in row.workloads.items():
            names = row.names(workload, None)
            if names is None:
                continue
            known = {*names.parameters}
            assert {facts.tokens_axis, facts.convergence_needs} - {None} <= known
            assert {*names.required} <= known
            assert names.metrics is None or {*names.metrics} == {*facts.metrics}

    def test_its_self_test_is_a_workload(self, row: Trainer) -> None:
        """``scalelab doctor`` lets two ranks step it."""
        if row.self_test is not None:
            row.check_name(row.self_test)

    def test_it_preloads_modules(self, row: Trainer) -> None:
        """Nodes import them once, before they fork ranks."""
        for workload in row.workloads:
            for module in row.preload(workload, row.strategies):
                assert module.replace(".", "_").isidentifier()

    def test_an_error_that_stands_for_nothing_has_no_outcome(
        self, row: Trainer
    ) -> None:
        """A bug of a program is not an outcome of its own."""
        assert row.outcome_of(RuntimeError("a bug")) is None

    def test_data_sets_that_it_does_not_have_are_refused(
        self, row: Trainer, tmp_path: Path
    ) -> None:
        """The message names the data set."""
        with pytest.raises(SpecError, match="no_such_data"):
            row.obtain("no_such_data", tmp_path)
