"""What diverged runs have in common."""

from typing import Any

import pytest

from scalelab.plan.diverged import diverged_in_words, diverged_runs


def run(rate: float, diverged: bool | None, **values: Any) -> dict[str, Any]:
    return {"learning_rate": rate, "diverged": diverged, **values}


def test_none_diverged() -> None:
    assert diverged_runs([]) == {}
    assert diverged_runs([run(0.1, False), run(0.7, None)]) == {}


def test_the_setting_is_named_that_no_other_run_has() -> None:
    rows = [
        *(run(0.7, True, global_batch_size=size) for size in (8, 16)),
        *(run(0.1, False, global_batch_size=size) for size in (8, 16)),
        run(9.0, None),  # it says nothing of its losses
    ]
    found = diverged_runs(rows)
    assert found == {
        "num_diverged": 2,
        "num_runs": 4,
        "settings": {"learning_rate": [0.7]},
    }
    assert diverged_in_words(**found) == (
        "2 of 4 runs diverged, both at learning rate 0.7."
    )


def test_settings_that_some_runs_lack_are_no_error() -> None:
    rows = [
        {"diverged": True, "options.depth": 8},
        run(0.1, False),
        run(0.2, False, **{"options.depth": 4}),
    ]
    assert diverged_runs(rows)["settings"] == {"options.depth": [8]}


def test_rates_above_all_others_are_a_range() -> None:
    rows = [run(rate, rate > 0.5) for rate in (0.1, 0.4, 0.6, 1.2, 2.4)]
    found = diverged_runs(rows)
    assert found["settings"] == {"learning_rate": [0.6, 2.4]}


@pytest.mark.parametrize("others", [[], [run(0.7, False)], [run(9.0, False)]])
def test_what_does_not_tell_them_apart_is_not_named(others: list[Any]) -> None:
    found = diverged_runs([run(0.7, True), run(1.4, True), *others])
    assert found["settings"] == {}
