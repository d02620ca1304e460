"""A source is asked about trials that run, and ends some of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sentences import refused

from scalelab.errors import StoreError
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.plan.source import Decision, TrialSource
from scalelab.plan.tracked import TrackedSource
from scalelab.records.attempt import AttemptSpec, NodeShare, Placement
from scalelab.records.control.events import TrialEnded
from scalelab.scheduling import driver
from scalelab.scheduling.driver import Pruning, worth_telling

MakeTrial = Callable[..., Trial]


class Judge(TrialSource):
    """Ends trials of some seeds once their loss is small."""

    wants_progress = True

    def __init__(
        self, trials: Sequence[Trial] = (), seeds: tuple[int, ...] = ()
    ) -> None:
        self.left, self.seeds = list(trials), seeds
        self.seen: list[tuple[int, Mapping[str, float]]] = []
        self.outcomes: list[str] = []

    def ask(self) -> Trial | None:
        return self.left.pop(0) if self.left else None

    def tell(self, observation: Mapping[str, Any]) -> None:
        self.outcomes.append(observation["outcome"])

    def tell_progress(
        self, trial: Trial, step: int, metrics: Mapping[str, float]
    ) -> Decision:
        self.seen.append((step, metrics))
        is_meant = trial.seed in self.seeds and metrics["loss"] < 0.2
        return Decision.END if is_meant else Decision.KEEP


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_source_ends_a_trial_that_runs(sweep: Any, make_trial: MakeTrial) -> None:
    trials = [
        make_trial(0, 1, does="report", seconds=60.0),
        make_trial(1, 1, does="report", seconds=3.0),
    ]
    source = Judge(trials, seeds=(0,))
    summary = sweep.driver(source).run()
    assert summary.outcomes == {Outcome.PRUNED: 1, Outcome.COMPLETED: 1}
    assert summary.num_failed == 0
    assert sorted(source.outcomes) == ["completed", "pruned"]
    (pruned,) = [e for e in sweep.events_of(TrialEnded) if e.outcome is Outcome.PRUNED]
    assert not pruned.runs_again
    reason = pruned.reason
    assert reason.startswith("Ended early by source=Judge at step ")
    assert "with loss=0." in reason

    resumed = Judge(trials)
    assert sweep.driver(resumed).run().num_resumed == 2
    assert sorted(resumed.outcomes) == ["completed", "pruned"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_source_that_fails_ends_the_sweep_and_is_named(
    sweep: Any, make_trial: MakeTrial
) -> None:
    source = Judge([make_trial(0, 1, does="report", seconds=60.0)])
    source.tell_progress = None  # type: ignore[assignment, method-assign]
    with refused("source_failed", "source=judge", "tell_progress: Type"):
        sweep.driver(TrackedSource("judge", source)).run()
    assert [row["outcome"] for row in sweep.store.rows()] == ["cancelled"]


@pytest.fixture
def spec(tmp_path: Path, make_trial: MakeTrial) -> Any:
    share = NodeShare(node="node-0", device_ids=("0",))
    return AttemptSpec(
        run="test",
        trial=make_trial(0),
        program=WorkloadProgram(name="scripted"),
        number=1,
        directory=str(tmp_path),
        placement=Placement(shares=(share,)),
        device_type="cpu",
    )


def write(spec: Any, *rows: Mapping[str, Any], end: str = "\n") -> None:
    with spec.files.stream.open("a") as stream:
        stream.write("\n".join(map(json.dumps, rows)) + end)


def test_what_is_new_is_told_once_and_at_a_bounded_rate(spec: Any, clock: Any) -> None:
    source = Judge()
    followed = Pruning(source)
    assert followed.deadline_s is None
    followed.follow(spec)
    assert list(followed.look()) == []  # there is no stream yet
    write(spec, {"event": "step", "step": 1, "loss": 1.0})
    assert list(followed.look()) == []
    assert source.seen == []  # too early to look again
    clock.now_s += driver.LOOK_EVERY_S
    write(spec, {"event": "step", "step": 2, "loss": 0.5})
    write(spec, {"event": "step", "step": 3, "loss": 0.4}, end="")
    assert list(followed.look()) == []
    assert source.seen == [(2, {"loss": 0.5})]
    write(spec, end="\n")
    clock.now_s += driver.LOOK_EVERY_S
    assert list(followed.look()) == []
    assert source.seen[1:] == [(3, {"loss": 0.4})]
    followed.forget(spec.attempt_id)
    assert followed.deadline_s is None


def test_a_trial_that_is_to_end_is_named_once(spec: Any, clock: Any) -> None:
    followed = Pruning(Judge(seeds=(0,)))
    followed.follow(spec)
    write(spec, {"event": "step", "step": 7, "loss": 0.1, "samples": 56, "t": 1.0})
    expected = "Ended early by source=Judge at step 7 with loss=0.1."
    assert list(followed.look()) == [(spec.attempt_id, expected)]
    write(spec, {"event": "step", "step": 8, "loss": 0.1})
    clock.now_s += driver.LOOK_EVERY_S
    assert list(followed.look()) == []


def test_nothing_is_read_for_a_source_that_does_not_want_to_know(spec: Any) -> None:
    source = Judge()
    source.wants_progress = False
    followed = Pruning(source)
    followed.follow(spec)
    assert followed.deadline_s is None


def test_a_damaged_stream_is_an_error(spec: Any) -> None:
    followed = Pruning(Judge())
    followed.follow(spec)
    spec.files.stream.write_text("[]\n")
    with pytest.raises(StoreError, match="line 1 is no JSON object"):
        list(followed.look())


def test_every_evaluation_is_told_and_the_latest_of_alike_steps() -> None:
    rows = [
        {"event": "step", "step": 1, "loss": 3.0, "note": "text", "flag": True},
        {"event": "step", "step": 2, "loss": 2.0},
        {"event": "evaluation", "step": 2, "acc": 0.1},
        {"event": "evaluation", "step": 2, "acc": 0.2},
        {"event": "step", "step": 3, "loss": 1.0},
        {"event": "step", "step": 4, "loss": 1.0, "acc": 0.3},
        {"event": "step", "step": 5, "loss": 0.5},
        {"event": "step", "loss": 0.1},
    ]
    assert list(worth_telling(rows)) == [
        (2, {"loss": 2.0}),
        (2, {"acc": 0.1}),
        (2, {"acc": 0.2}),
        (3, {"loss": 1.0}),
        (4, {"loss": 1.0, "acc": 0.3}),
        (5, {"loss": 0.5}),
    ]
