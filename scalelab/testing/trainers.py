"""What every trainer promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalelab.errors import SpecError
from scalelab.kinds.registry import imported
from scalelab.kinds.trainers import Trainer
from scalelab.testing.installed import RowContract

NOBODYS = "a_name_of_nobody"


class TrainerContract(RowContract):
    """What every trainer promises."""

    registry_path = "scalelab.kinds.trainers:TRAINERS"

    def test_it_has_workloads_of_its_own(self, row: Trainer) -> None:
        """Their names hold no slash, which stands between trainer and workload."""
        assert row.workloads
        for workload in row.workloads:
            assert "/" not in workload
            row.check_name(workload)
            row.check_keys(workload, {}, {})

    def test_other_names_are_refused(self, row: Trainer) -> None:
        """Of workloads, strategies and data sets alike."""
        for refuse in (
            lambda: row.check_name(NOBODYS),
            lambda: row.check_strategy(NOBODYS),
            lambda: row.obtain(NOBODYS, Path(NOBODYS)),
        ):
            with pytest.raises(SpecError, match=NOBODYS):
                refuse()
        assert not Path(NOBODYS).exists()

    def test_it_runs_the_strategies_that_it_lists(self, row: Trainer) -> None:
        """There is one at least."""
        assert row.strategies
        for strategy in row.strategies:
            row.check_strategy(strategy)

    def test_names_of_workloads_agree_with_what_is_known(self, row: Trainer) -> None:
        """Metrics are the same, and parameters of every workload are named apart."""
        for workload, facts in row.workloads.items():
            names = row.names(workload, None)
            if names is None:
                continue
            assert names.metrics in (None, facts.metrics)
            assert not {*names.parameters} & {*row.process_parameters}
            needed = {facts.convergence_needs, facts.tokens_axis} - {None}
            assert names.is_open or needed <= {*names.parameters}

    def test_what_it_names_by_path_is_there(self, row: Trainer) -> None:
        """What processes call, and its command lines."""
        paths = [row.entry, *(each.path for each in row.commands.values())]
        assert all(callable(imported(path)) for path in paths)

    def test_nodes_preload_modules(self, row: Trainer) -> None:
        """They are named, not imported."""
        for workload in row.workloads:
            modules: Any = row.preload(workload, row.strategies)
            assert all(isinstance(each, str) and ":" not in each for each in modules)

    def test_the_self_test_is_a_workload(self, row: Trainer) -> None:
        """Doctor runs two steps of it on two ranks."""
        assert row.self_test is None or row.self_test in row.workloads

    def test_an_error_of_no_meaning_is_left_to_others(self, row: Trainer) -> None:
        """It counts as a failure then."""
        assert row.outcome_of(ValueError("any")) is None
