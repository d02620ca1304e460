"""What a search says when asked: the best, how trials ended, what that is worth."""

from typing import Any

from searched import RANGES, SEARCH, completed, reached, search, swept

from scalelab.experiment.spec import Experiment
from scalelab.plan.source import Observation
from scalelab.search.tuned_trials import SearchResult


def result(rows: list[Observation], text: str = RANGES) -> SearchResult:
    return SearchResult.read(Experiment.from_text(SEARCH + text), rows)


def test_the_best_is_said_with_its_settings_and_its_worth() -> None:
    rows = swept(search())
    best = max(rows, key=lambda each: each["final_metrics"])
    rate, decay = best["learning_rate"], best["options.weight_decay"]

    found = result([*rows, {"trial_id": "other", "outcome": "completed"}])
    accuracy = found.best[0].results[0]
    assert found.sentences == (
        "Search for val_acc (max): 12 trials ended (12 completed).",
        f"Best: val_acc {accuracy:.4g} with learning_rate {rate:.4g}, weight_decay "
        f"{decay:.4g} (trial {best['trial_id']}).",
        "Each setting was run once, with one seed, so the best of them is partly luck: "
        "repeat it with other seeds before you rely on it.",
    )


def test_text_and_facts_agree() -> None:
    ends = [{"outcome": "pruned"}, {"outcome": "out_of_memory"}]
    rows = swept(
        search(), lambda trial: ends.pop() if ends else completed(trial), most=5
    )
    found = result(rows)
    assert found.sentences[0] == (
        "Search for val_acc (max): 5 trials ended (1 out of memory, 1 pruned, 3 "
        "completed); 7 to come."
    )
    ended, best = found.to_json()
    assert ended == {
        "kind": "search",
        "objectives": [{"metric": "val_acc", "mode": "max"}],
        "num_trials": 12,
        "num_ended": 5,
        "outcomes": {"out_of_memory": 1, "pruned": 1, "completed": 3},
        "diverged": {},
    }
    assert best["results"] == {"val_acc": found.best[0].results[0]}
    assert best["trial_id"] in found.sentences[1]


def test_before_a_trial_has_completed_none_is_best() -> None:
    assert result([]).sentences == (
        "Search for val_acc (max): 0 trials ended (none); 12 to come.",
        "No trial has completed, so none is the best yet.",
    )


def test_less_is_better_of_a_loss() -> None:
    losses = iter([0.3, 0.1, 0.2])
    rows = swept(search(), lambda trial: reached(1 - next(losses)), most=3)
    found = result(rows, f"{RANGES}objective: val_loss\n")
    assert found.best[0].trial_id == rows[1]["trial_id"]


def test_a_single_trial_is_no_luck_among_many() -> None:
    found = result(swept(search(), most=1))
    assert len(found.sentences) == 2


def test_of_several_objectives_the_front_is_said() -> None:
    ends: list[dict[str, Any]] = [
        reached(accuracy, num_samples=100, throughput_samples_per_s=100 / seconds)
        for accuracy, seconds in [(0.9, 10), (0.8, 5), (0.7, 7), (0.95, 30)]
    ]
    text = f"{RANGES}objective: [val_acc, time]\n"
    rows = swept(search(text), lambda trial: ends.pop(0), most=4)
    found = result(rows, text)
    assert [[*each.results] for each in found.best] == [[0.95, 30], [0.9, 10], [0.8, 5]]
    assert found.sentences[1] == (
        "Pareto front: 3 trials, none of which another beats in all."
    )
    assert found.sentences[2].startswith("  val_acc 0.95, time 30 s with learning_rate")
