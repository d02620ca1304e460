"""The source of a search: what it proposes, and what it learns."""

import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from searched import RANGES, completed, reached, row, search, swept
from sentences import refused

from scalelab.plan.source import Decision

CHOICES = "tune: {dropout: [0.0, 0.1, 0.2], optimizer: [sgd, adamw]}\n"


def test_settings_lie_in_their_ranges_and_are_frozen_into_trials() -> None:
    source, trials = search(), []
    swept(source, lambda trial: trials.append(trial) or completed(trial))

    assert len({trial.trial_id for trial in trials}) == source.total == 12
    assert source.remaining == 0
    for trial in trials:
        assert trial.learning_rate is not None
        assert 0.001 <= trial.learning_rate.value <= 1
        assert trial.options.keys() == {"weight_decay"}
        assert trial.measurement.target is None  # it trains its whole length
        assert trial.measurement.max_samples == 4000


def test_a_search_comes_to_better_settings_than_chance() -> None:
    """The last ten of forty trials are better than the first, random ten."""
    rows = swept(search(RANGES.replace("12", "40")))
    values = [float(each["final_metrics"].split()[1][:-1]) for each in rows]
    assert sum(values[-10:]) > sum(values[:10])


def test_as_many_run_at_once_as_devices_hold() -> None:
    source = search()
    assert [source.ask() is not None for _ in range(3)] == [True, True, False]


def test_few_settings_run_once_each_whatever_chooses_them() -> None:
    for sampler in ("tpe", "random", "grid"):
        source = search(f"{CHOICES}sampler: {sampler}\n")
        rows = swept(source)
        found = [(each["options.dropout"], each["options.optimizer"]) for each in rows]
        assert Counter(found) == Counter(product((0.0, 0.1, 0.2), ("sgd", "adamw")))
        assert source.remaining == 0


def test_a_part_of_few_settings_runs_once_each() -> None:
    source = search(f"{CHOICES}trials: 5\n")
    rows = swept(source)
    assert len({each["trial_id"] for each in rows}) == len(rows) == 5
    assert source.remaining == 0


def test_whole_numbers_are_few_settings_too() -> None:
    source = search("tune: {dropout: [0.0, 0.1], loader_workers: {int: [0, 2]}}\n")
    assert source.total == 6
    assert len(swept(source)) == 6


def test_a_diverged_run_is_worse_than_all_others(tmp_path: Path) -> None:
    source = search()
    lost = {"outcome": "target_not_reached", "diverged": True}
    ends = [lost, {"outcome": "failed"}]
    swept(source, lambda trial: dict(ends.pop(0)) if ends else completed(trial), most=4)
    states = Counter(trial.state.name for trial in source.study(tmp_path).trials)
    assert states["PRUNED"] == 1  # the sampler learns from it, not from a failure
    assert states["FAIL"] == 1


def test_a_hopeless_trial_is_pruned() -> None:
    source = search()
    for _ in range(6):  # the median pruner wants five
        trial = source.ask()
        assert trial is not None
        assert source.tell_progress(trial, 31, {"val_acc": 0.8}) == Decision.KEEP
        source.tell(row(trial, reached(0.9)))

    better, worse = source.ask(), source.ask()
    assert better is not None
    assert worse is not None
    assert source.tell_progress(better, 31, {"val_acc": 0.9}) == Decision.KEEP
    assert source.tell_progress(worse, 31, {"val_loss": 9.0}) == Decision.KEEP
    assert source.tell_progress(worse, 31, {"val_acc": 0.1}) == Decision.END


def test_several_objectives_are_not_pruned() -> None:
    source = search(f"{RANGES}objective: [val_acc, time]\n")
    assert not source.wants_progress
    rows = swept(source, lambda trial: reached(0.9, allocated_gpu_s=2.0))
    assert len(rows) == 12


def test_time_alone_is_that_to_the_target() -> None:
    source = search(f"{RANGES}objective: time\n")
    trial = source.ask()
    assert trial is not None
    assert str(trial.measurement.target) == "val_acc >= 0.9"
    assert not source.wants_progress


@pytest.mark.parametrize(
    ("end", "state", "constraint"),
    [
        (reached(0.5), "COMPLETE", {}),
        ({"outcome": "pruned"}, "PRUNED", {}),
        ({"outcome": "failed"}, "FAIL", {}),
        ({"outcome": "stalled"}, "FAIL", {}),
        ({"outcome": "out_of_memory"}, "PRUNED", {"memory of a device": 1.0}),
        (
            {"outcome": "target_not_reached"},
            "PRUNED",
            {"target or finite loss": 1.0},
        ),
        (reached(float("nan")), "FAIL", {}),
    ],
)
def test_optuna_learns_how_each_trial_ended(
    end: dict[str, Any], state: str, constraint: dict[str, float], tmp_path: Any
) -> None:
    source = search(directory=tmp_path)
    swept(source, lambda trial: end, most=1)
    first = source.study(tmp_path).trials[0]
    assert (first.state.name, first.constraints) == (state, constraint)


def test_a_metric_that_no_trial_reports_is_refused_with_those_that_are() -> None:
    source = search(f"{RANGES}objective: val_accuracy\n")
    trial = source.ask()
    assert trial is not None
    with refused("unknown_metric", "objective=val_accuracy", "val_acc, val_loss"):
        source.tell(row(trial, reached(0.5)))


def test_rows_of_another_search_are_none_of_its_own() -> None:
    rows = swept(search())
    narrower = search(RANGES.replace("[0, 0.1]", "[0, 0.05]"))
    for each in rows:
        narrower.tell(each)
    kept = [each for each in rows if each["options.weight_decay"] <= 0.05]
    assert narrower.remaining == 12 - len(kept)

    elsewhere = search(RANGES + "precision: bf16\n")
    for each in rows:
        elsewhere.tell(each)
    assert elsewhere.remaining == 12


def test_what_is_chosen_is_described() -> None:
    assert [*search().describe()] == [
        "Optuna (tpe) chooses the settings of 12 trials, up to 2 trials at once, for "
        "val_acc (max):",
        "  learning_rate: 0.001 to 1, log",
        "  weight_decay: 0 to 0.1",
    ]


def test_optuna_is_imported_where_a_search_runs_only() -> None:
    code = (
        "import sys\nfrom searched import search\nsource = search()\n"
        "assert source.remaining == 12\nassert 'optuna' not in sys.modules\n"
        "source.ask()\nassert 'optuna' in sys.modules\n"
    )
    folder = sys.modules["searched"].__file__
    assert folder is not None
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=folder.rpartition("/")[0]
    )


def test_a_rate_may_be_chosen_from_a_list_of_whole_numbers_too() -> None:
    source = search("tune: {learning_rate: [1, 0.1], batch_norm: [true, false]}\n")
    rows = swept(source)
    assert Counter(each["learning_rate"] for each in rows) == {1.0: 2, 0.1: 2}
    assert source.remaining == 0
