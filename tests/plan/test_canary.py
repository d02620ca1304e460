from collections import Counter

import pytest

from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import FIRST_CANARY, Trial
from scalelab.plan.expand import plan
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import TrialSource
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 4})
TEXT = """\
name: a
workload: digits_mlp
learning_rate: 0.1
gpus: [2, 1, 4]
local_batch_size: [16, 8]
measure: {long_trial: none, canary_every: 4, repeats: 2}
"""


def trials_of(text: str) -> tuple[Trial, ...]:
    return plan(Experiment.from_text(text), SITE).trials


def source(text: str = TEXT) -> PlannedTrials:
    return PlannedTrials(Experiment.from_text(text), SITE)


def run(
    trials: TrialSource, *, at_once: int = 3, at_most: int = 10_000
) -> list[dict[str, object]]:
    """Run a source as the driver does; a row says how many had ended before."""
    rows: list[dict[str, object]] = []
    under_way: list[tuple[Trial, int]] = []
    while len(rows) < at_most:
        while len(under_way) < at_once and (trial := trials.ask()) is not None:
            under_way.append((trial, sum(not row["is_canary"] for row in rows)))
        if not under_way:
            break
        trial, num_before = under_way.pop(0)
        rows.append(
            {
                "trial_id": trial.trial_id,
                "outcome": "completed",
                "is_canary": trial.canary_after is not None,
                "after": trial.canary_after,
                "num_before": num_before,
            }
        )
        trials.tell(rows[-1])
    return rows


def moments(trials: tuple[Trial, ...]) -> list[int | None]:
    """Return how many other trials of the plan come before each canary."""
    found, num_before = [], 0
    for trial in trials:
        if trial.canary_after is None:
            num_before += 1
        else:
            assert trial.canary_after == num_before
            found.append(num_before)
    return found


def test_the_canary_is_one_configuration_first_every_so_often_and_last() -> None:
    trials = trials_of(TEXT)

    assert moments(trials) == [0, 4, 8, 12]
    canaries = [trial for trial in trials if trial.canary_after is not None]
    assert {(each.world_size, each.local_batch_size) for each in canaries} == {(1, 8)}
    assert [each.repeat for each in canaries] == [
        FIRST_CANARY + moment for moment in (0, 4, 8, 12)
    ]
    assert len({trial.trial_id for trial in trials}) == len(trials) == 16


@pytest.mark.parametrize(
    ("every", "expected"),
    [(0, []), (13, []), (12, [0, 12]), (7, [0, 12]), (5, [0, 5, 12]), (6, [0, 6, 12])],
)
def test_no_two_canaries_are_closer_than_asked(every: int, expected: list[int]) -> None:
    text = TEXT.replace("canary_every: 4", f"canary_every: {every}")
    assert moments(trials_of(text)) == expected


def test_the_cheapest_has_the_fewest_samples_then_devices_then_nodes() -> None:
    text = TEXT.replace("gpus: [2, 1, 4]", "nodes: [2, 1]\ngpus_per_node: [2, 4]")
    canary = trials_of(text)[0]
    assert canary.allocation.devices_per_node == (2,)
    same_batch = text.replace("local_batch_size: [16, 8]", "global_batch_size: 64")
    assert trials_of(same_batch)[0].allocation.devices_per_node == (2,)


def test_other_families_count_but_are_no_canaries() -> None:
    family = "job: {target: val_acc >= 0.9, samples_per_epoch: 100, epochs: 2}\n"
    both = TEXT.replace("repeats: 2", "repeats: 1, kind: [convergence, throughput]")
    canaries = [
        trial for trial in trials_of(both + family) if trial.canary_after is not None
    ]
    assert {trial.kind.value for trial in canaries} == {"throughput"}
    alone = both.replace("[convergence, throughput]", "convergence")
    assert moments(trials_of(alone + family)) == []


def test_canaries_are_proposed_when_they_are_due() -> None:
    rows = run(source(), at_once=3)

    canaries = [row for row in rows if row["is_canary"]]
    assert [row["after"] for row in canaries] == [0, 4, 8, 12]
    assert all(row["num_before"] == row["after"] for row in canaries)
    assert rows[0]["is_canary"]
    assert rows[-1]["is_canary"]


@pytest.mark.parametrize("num_told", range(17))
def test_a_sweep_resumed_anywhere_runs_each_canary_once(num_told: int) -> None:
    before = run(source(), at_most=num_told)
    again = source()
    for row in before:
        again.tell(row)

    assert again.remaining == 16 - num_told
    rows = before + run(again)
    assert len({row["trial_id"] for row in rows}) == len(rows) == 16
    counts = Counter(row["after"] for row in rows if row["is_canary"])
    assert counts == {0: 1, 4: 1, 8: 1, 12: 1}


def test_an_extended_sweep_keeps_its_canaries_and_adds_what_it_lacks() -> None:
    before = run(source())
    longer = source(TEXT.replace("repeats: 2", "repeats: 3"))
    for row in before:
        longer.tell(row)

    rows = run(longer)

    # 0, 4, 8 and 12 are there; 16 would be closer than 4 to the last, after 18.
    assert [row["after"] for row in rows if row["is_canary"]] == [18]
    assert len(rows) == 6 + 1


def test_canaries_wait_for_the_largest_batch_that_fits() -> None:
    auto = TEXT.replace("[16, 8]", "{at_most: 32, multiple_of: 8}")
    trials = source(auto)
    rows = run(trials)

    assert trials.local_batch_sizes.popitem()[1] == 32
    assert [row["after"] for row in rows if row["is_canary"]] == [0, 6]
    assert trials.remaining == 0
    assert trials.total == len(rows)
