"""Contract test classes: what ScaleLab expects of a row of each kind, as pytest tests.

A distribution that adds a row inherits the class of its kind in its own tests and
supplies the row by a fixture::

    from scalelab.testing.strategies import StrategyContract


    class TestPaired(StrategyContract):
        @pytest.fixture
        def row(self):
            return Paired()

The built-in rows pass the same tests. They need the distribution installed, and pytest,
which nothing else of ScaleLab imports.
"""

import pytest

for _kind in (
    *("installed", "strategies", "launchers", "batch_systems", "resources"),
    *("sources", "trainers"),
):
    pytest.register_assert_rewrite(f"{__name__}.{_kind}")
