"""What is submitted and given back, against a batch system that does as it is told."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from distributed.scheduler import KilledWorker
from provision_scenes import Scene

from scalelab.cluster.batch.queue import (
    MISSING_LOOKS,
    EndCause,
    JobRefused,
    JobState,
    JobView,
    QueueSeen,
)
from scalelab.cluster.watch import NodeLeft
from scalelab.errors import ClusterError
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, AttemptSpec, NodeShare, Placement
from scalelab.scheduling.gangs import PartEnded, Verdict
from scalelab.scheduling.provision.demand import MAX_BUSY, SubmissionBackoff
from scalelab.scheduling.provision.provisioner import RETURN_S


@pytest.fixture
def lossy(scene: Callable[..., Scene]) -> Scene:
    """Return a scene whose only trial runs on the node of its only job."""
    lossy = scene()
    lossy.begin((2,))
    lossy.see()
    lossy.up("run-1", "a")
    lossy.place()
    lossy.tick()
    return lossy


def test_a_pool_asks_for_the_nodes_that_the_trials_can_use(
    scene: Callable[..., Scene],
) -> None:
    few = scene()
    few.wait_for(1)
    few.wait_for(2)
    few.tick()
    assert few.batch.requested == {"run-1": 1, "run-2": 1}
    many = scene()
    for _ in range(50):
        many.wait_for(1)
    many.tick()
    assert len(many.batch.requested) == 4
    large = scene()
    large.wait_for(1, 1, 1)
    large.tick()
    assert len(large.batch.requested) == 3
    none = scene()
    none.tick()
    assert none.batch.requested == {}


def test_one_job_holds_all_nodes_of_the_largest_trial(
    scene: Callable[..., Scene],
) -> None:
    one = scene(provision="one_job")
    one.begin((2,), (2, 2, 2))
    one.tick()
    assert one.batch.requested == {"run-1": 3}
    one.up("run-1", "a", "b", "c")
    assert one.place() == [2]
    one.tick()
    assert one.batch.ended == []
    one.pool.placers[None].release(2)
    assert one.place() == [1]
    one.pool.placers[None].release(1)
    one.tick()
    assert one.batch.ended == ["run-1"]


def test_limits_of_the_site_are_kept(scene: Callable[..., Scene]) -> None:
    limited = scene(max_jobs=3, submit_interval="10s")
    for _ in range(8):
        limited.wait_for(1)
    limited.tick()
    assert len(limited.batch.requested) == 1
    limited.tick(5)
    assert len(limited.batch.requested) == 1
    for _ in range(5):
        limited.tick(6)
    assert len(limited.batch.requested) == 3


def test_attempts_know_how_long_their_nodes_were_waited_for(
    scene: Callable[..., Scene],
) -> None:
    queued = scene(exclusive=True)
    queued.begin((2,), (2,))
    queued.see(**dict.fromkeys(["run_1", "run_2"], JobView(state=JobState.PENDING)))
    queued.tick(40)
    queued.see(run_2=JobView(state=JobState.PENDING))
    queued.tick(20)
    queued.up("run-1", "a")
    queued.up("run-2", "b")  # before the queue is looked at again
    queued.tick(5)
    placed = queued.pool.place(queued.clock.now_s)
    waits = [queued.provision.queue_wait_s(where) for _, where in placed]
    assert sorted(waits) == [pytest.approx(40, abs=2), pytest.approx(65, abs=2)]
    assert queued.provision.is_exclusive(None)


def test_nodes_that_are_not_needed_any_more_are_given_back_idle_ones_only(
    scene: Callable[..., Scene],
) -> None:
    pool = scene()
    pool.begin(*[(2,)] * 3)
    pool.up("run-1", "a")
    pool.up("run-2", "b")
    assert len(pool.place()) == 2
    pool.see(run_3=JobView(state=JobState.PENDING))
    pool.tick()
    assert pool.batch.ended == []
    pool.pool.placers[None].release(1)
    (third,) = pool.place()
    pool.tick()
    assert pool.batch.ended == ["run-3"], "a job that waits goes first"
    pool.pool.placers[None].release(2)
    pool.tick()
    assert len(pool.batch.ended) == 2
    assert pool.pool.num_devices == 2
    assert pool.pool.num_held_devices == 2, "a busy node stays"
    pool.pool.placers[None].release(third)
    pool.tick(is_stopped=True)
    assert sorted(pool.batch.ended) == ["run-1", "run-2", "run-3"]


def test_a_stopped_sweep_asks_for_nothing(scene: Callable[..., Scene]) -> None:
    stopped = scene()
    stopped.wait_for(1)
    stopped.tick(is_stopped=True)
    assert stopped.batch.requested == {}


def test_a_lost_job_is_replaced_and_its_nodes_are_left(lossy: Scene) -> None:
    lossy.see(run_1=JobView(state=JobState.ENDED, reason="PREEMPTED"))
    assert lossy.left == ["tls://a:run-1"]
    assert lossy.said[-1] == "job 1 (run-1) ended: PREEMPTED."
    lossy.wait_for(2)
    lossy.tick()
    assert list(lossy.batch.requested) == ["run-1", "run-2"]


@pytest.mark.parametrize(
    ("left_s", "cause", "is_lost"),
    [
        (3.0, EndCause.OTHER, False),
        (300.0, EndCause.TIME_LIMIT, False),
        (300.0, EndCause.OTHER, True),
    ],
)
def test_a_job_whose_time_is_up_was_not_lost(
    lossy: Scene, left_s: float, cause: EndCause, is_lost: bool
) -> None:
    lossy.see(run_1=JobView(state=JobState.RUNNING, remaining_s=left_s))
    view = JobView(state=JobState.ENDED, reason="it went", end_cause=cause)
    lossy.see(run_1=view)
    lossy.tick()
    assert any("it went" in each for each in lossy.batch.waiting) == is_lost
    lost = verdict_on("a/run-1", lossy.make_trial(1, 2), Outcome.NODE_FAIL)
    outcome = Outcome.NODE_FAIL if is_lost else Outcome.PREEMPTED
    assert lossy.provision.explain(lost).outcome is outcome


def test_the_end_of_a_job_is_the_earliest_that_was_ever_computed(
    scene: Callable[..., Scene],
) -> None:
    long = scene(walltime="10min")
    long.begin((2,), duration_s=300)
    long.up("run-1", "a")
    assert long.place() == [1]
    end_s = long.clock.now_s + 600
    share = NodeShare(node="a/run-1", device_ids=("0",))
    for used_s in (0, 10, 10, 10, 200):
        # What PBS says of the time used is up to two minutes old.
        view = JobView(state=JobState.RUNNING, remaining_s=600 - used_s)
        long.see(run_1=view)
        long.tick(60)
        left_s = long.pool.time_left_s(Placement(shares=(share,)))
        assert left_s is not None
        assert long.clock.now_s + left_s <= end_s
    assert long.batch.ended == []


def verdict_on(node: str, trial: Trial, outcome: Outcome) -> Verdict:
    spec = AttemptSpec(
        run="run",
        trial=trial,
        program=WorkloadProgram(name="scripted"),
        number=1,
        directory="/nowhere",
        placement=Placement(shares=(NodeShare(node=node, device_ids=("0", "1")),)),
        device_type="cpu",
    )
    result = AttemptResult(outcome=outcome, reason="It ended.")
    return Verdict(spec, result, overrules=False, held_s=1.0)


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (EndCause.PREEMPTED, Outcome.PREEMPTED),
        (EndCause.TIME_LIMIT, Outcome.PREEMPTED),
        (EndCause.OTHER, Outcome.NODE_FAIL),
    ],
)
def test_the_loss_of_a_node_is_told_as_the_batch_system_tells_it(
    lossy: Scene, cause: EndCause, outcome: Outcome
) -> None:
    # The words may hold any name, of a run that studies timeouts, say.
    words = "CANCELLED of timeout-study, which was PREEMPTED"
    assert lossy.provision.defer(NodeLeft("tls://a:run-1"))
    assert lossy.pool.num_devices == 0, "nothing more is placed there"
    lossy.tick(0.1)
    assert lossy.delivered == []
    view = JobView(state=JobState.ENDED, reason=words, end_cause=cause)
    lossy.see(run_1=view)
    assert lossy.left == ["tls://a:run-1"]
    trial = lossy.make_trial(1, 2)
    lost = verdict_on("a/run-1", trial, Outcome.NODE_FAIL)
    said = lossy.provision.explain(lost)
    assert said.outcome is outcome
    assert said.reason == f"job 1 (run-1) ended: {words}."
    other = verdict_on("a/run-1", trial, Outcome.FAILED)
    assert lossy.provision.explain(other) == other.result
    elsewhere = verdict_on("b/run-2", trial, Outcome.NODE_FAIL)
    assert lossy.provision.explain(elsewhere) == elsewhere.result


def test_a_loss_that_nobody_explains_is_news_a_little_later(
    scene: Callable[..., Scene],
) -> None:
    lossy = scene()
    lossy.up("run-1", "a")
    news: list[NodeLeft | PartEnded] = [
        NodeLeft("tls://a:run-1"),
        PartEnded("trial-1", 0, KilledWorker("task", "worker", 0)),
    ]
    assert all(map(lossy.provision.defer, news))
    assert not lossy.provision.defer(PartEnded("trial-2", 0, "{}"))
    lossy.tick(1)
    assert lossy.delivered == []
    lossy.tick(20)
    assert lossy.delivered == news
    assert not any(map(lossy.provision.defer, news))


def test_a_loss_is_news_once_the_batch_system_shows_that_the_job_runs_on(
    scene: Callable[..., Scene], lossy: Scene
) -> None:
    news = NodeLeft("tls://a:run-1")
    assert lossy.provision.defer(news)
    leaving = JobView(state=JobState.RUNNING, reason="COMPLETING", is_leaving=True)
    lossy.tick()
    lossy.see(run_1=leaving)
    lossy.tick()
    assert lossy.delivered == [], "it may still say how it ended"
    assert lossy.batch.ended == []
    other = scene()
    assert other.provision.defer(news)
    other.begin((2,))
    other.see()
    other.tick()
    other.see()
    assert other.delivered == [news]


def test_a_job_that_takes_too_long_to_end_has_ended(
    scene: Callable[..., Scene],
) -> None:
    slow = scene()
    slow.begin((2,))
    slow.up("run-1", "a")
    slow.tick()
    leaving = JobView(state=JobState.RUNNING, reason="COMPLETING", is_leaving=True)
    for _ in range(4):
        slow.see(run_1=leaving)
        slow.tick(6)
    assert slow.said[-1] == "job 1 (run-1) ended: COMPLETING."
    assert list(slow.batch.requested) == ["run-1", "run-2"]


def test_a_suspended_job_is_given_up_and_replaced(
    scene: Callable[..., Scene],
) -> None:
    stopped = scene()
    stopped.begin((2,))
    stopped.up("run-1", "a")
    stopped.tick()
    view = JobView(state=JobState.RUNNING, reason="suspended", is_suspended=True)
    stopped.see(run_1=view)
    stopped.tick()
    assert stopped.said[-1] == "job 1 (run-1) ended: suspended, so it was given up."
    assert stopped.batch.ended == ["run-1"]
    assert list(stopped.batch.requested) == ["run-1", "run-2"]


def test_losses_in_a_row_come_to_an_end_unless_trials_are_measured_in_between(
    scene: Callable[..., Scene],
) -> None:
    def lose(lossy: Scene) -> None:
        lossy.tick(200)
        lossy.submitted()
        name = list(lossy.batch.requested)[-1]
        lossy.up(name, "a")
        lossy.tick()
        lossy.see(**{name.replace("-", "_"): JobView(state=JobState.ENDED)})

    unlucky = scene()
    unlucky.wait_for(2)
    for _ in range(8):
        lose(unlucky)
    with pytest.raises(ClusterError, match="That was so 8 times in a row"):
        unlucky.tick(200)
    lucky = scene()
    lucky.wait_for(2)
    for _ in range(12):
        lose(lucky)
        if len(lucky.batch.requested) % 7 == 0:
            lucky.provision.record_success(None)
    lucky.tick(200)
    assert len(lucky.batch.requested) == 13


def test_a_refusal_ends_the_sweep_with_the_schedulers_words(
    scene: Callable[..., Scene],
) -> None:
    refused = scene()
    refused.wait_for(1)
    refused.tick()
    refused.provision.take(JobRefused("run-1", "sbatch: error: Invalid account"))
    with pytest.raises(
        ClusterError,
        match=r"refused a job: sbatch: error: Invalid account\.\nWaiting trials: 1\.",
    ):
        refused.tick()


def test_a_refusal_waits_for_what_runs(scene: Callable[..., Scene]) -> None:
    partly = scene()
    partly.begin((2,), (1, 1))
    partly.up("run-1", "a")
    partly.see(
        run_2=JobView(
            state=JobState.PENDING, reason="BadConstraints", can_never_run=True
        )
    )
    assert partly.place() == [1]
    partly.tick()
    assert partly.batch.ended == ["run-2"]
    assert len(partly.batch.requested) == 2
    partly.pool.placers[None].release(1)
    with pytest.raises(ClusterError, match=r"job 2 can never run: BadConstraints"):
        partly.tick()


def test_a_busy_scheduler_is_asked_again_later_and_later(
    scene: Callable[..., Scene],
) -> None:
    busy = scene()
    busy.wait_for(1)
    words = "sbatch: error: Batch job submission failed: Socket timed out"
    asked_at = []
    for _ in range(200):
        before = len(busy.batch.requested)
        busy.tick()
        if len(busy.batch.requested) > before:
            asked_at.append(busy.clock.now_s)
            name = list(busy.batch.requested)[-1]
            busy.provision.take(JobRefused(name, words, is_busy=True))
    pauses = [later - now for now, later in pairwise(asked_at)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 60
    assert words in busy.batch.waiting[0]
    assert busy.said == [f"The batch system refused a job: {words}."], "said once"


def test_a_queue_that_is_full_while_a_job_works_is_asked_again_for_ever(
    scene: Callable[..., Scene],
) -> None:
    def refuse(number: int) -> None:
        for _ in range(number):
            full.tick(61)
            name = list(full.batch.requested)[-1]
            full.provision.take(JobRefused(name, "MaxSubmit", is_busy=True))

    full = scene()
    full.begin((2,))
    full.up("run-1", "a")
    full.see()
    assert full.place() == [1]
    full.wait_for(2)
    refuse(3 * MAX_BUSY)
    # The walltime of the job that works is up: what waits may be asked for.
    over = JobView(state=JobState.ENDED, end_cause=EndCause.TIME_LIMIT)
    full.see(run_1=over)
    refuse(MAX_BUSY - 1)
    full.tick(61)
    full.submitted()
    full.tick()
    assert not any("MaxSubmit" in each for each in full.batch.waiting)
    last = list(full.batch.requested)[-1]
    full.see(**{last.replace("-", "_"): over})
    with pytest.raises(ClusterError, match=f"MaxSubmit.* so {MAX_BUSY} times in a row"):
        refuse(MAX_BUSY + 1)


def test_a_measured_trial_takes_back_that_the_queue_was_too_full() -> None:
    backoff = SubmissionBackoff()
    for _ in range(MAX_BUSY):
        assert backoff.verdict == ""
        backoff.refused("full", is_busy=True)
    assert backoff.verdict
    backoff.reset()
    assert (backoff.verdict, backoff.words) == ("", "")
    backoff.refused("no such queue")
    backoff.reset()
    assert backoff.verdict == "The batch system refused a job: no such queue."


def test_a_job_that_is_not_needed_is_not_said_to_end_too_soon(
    scene: Callable[..., Scene],
) -> None:
    last = scene(walltime="10min")
    last.begin((2,), (2,))
    for job, host in (("run-1", "a"), ("run-2", "b")):
        last.up(job, host)
    view = JobView(state=JobState.RUNNING, remaining_s=500)
    last.see(run_1=view, run_2=view)
    assert len(last.place()) == 2
    last.pool.placers[None].release(2)
    last.tick()
    assert last.batch.ended == ["run-2"]
    assert last.said == []


def test_a_job_that_does_not_start_shows_the_end_of_its_log(
    scene: Callable[..., Scene],
) -> None:
    failing = scene()
    failing.wait_for(1)
    for number in range(1, 4):
        failing.tick(200)
        failing.submitted()
        failing.see(
            **{f"run_{number}": JobView(state=JobState.ENDED, reason="NonZeroExitCode")}
        )
    with pytest.raises(
        ClusterError, match=r"ended: NonZeroExitCode\.\nThe end of its log:\nwhat run-3"
    ):
        failing.tick(200)


def test_a_node_that_does_not_answer_in_time_is_given_up(
    scene: Callable[..., Scene],
) -> None:
    silent = scene()
    silent.wait_for(1)
    for number in range(1, 4):
        silent.tick(200)
        silent.submitted()
        silent.see()
        silent.tick(4)
        assert silent.batch.ended == [f"run-{each}" for each in range(1, number)]
        if number == 3:
            break
        silent.tick(6)
        assert silent.batch.ended[-1] == f"run-{number}"
    with pytest.raises(
        ClusterError,
        match=r"runs, but 0 of its 1 nodes answered within 5 s\.\nThe end of its log:",
    ):
        silent.tick(6)


def test_a_job_that_is_gone_from_the_queue_is_gone(
    scene: Callable[..., Scene],
) -> None:
    gone = scene()
    gone.begin((1,))
    for _ in range(MISSING_LOOKS):
        assert len(gone.batch.requested) == 1
        gone.provision.take(QueueSeen({}, frozenset({"run-1"})))
        gone.tick(0.1)
    gone.tick(100)
    assert list(gone.batch.requested) == ["run-1", "run-2"]


def test_a_queue_that_does_not_answer_changes_nothing_and_is_said_once(
    scene: Callable[..., Scene],
) -> None:
    away = scene()
    away.begin((1,))
    for _ in range(5):
        error = "squeue: Unable to contact slurm controller"
        away.provision.take(QueueSeen({}, frozenset({"run-1"}), error))
        away.tick()
    assert away.said == [error]
    assert away.batch.waiting[0] == error
    assert away.batch.requested == {"run-1": 1}
    away.see()
    away.tick()
    assert error not in away.batch.waiting


def test_why_each_trial_waits_is_written_down(scene: Callable[..., Scene]) -> None:
    mixed = scene()
    for devices in ((2,), (2,), (1,), (2, 2, 2), (2, 2, 2)):
        mixed.wait_for(*devices)
    for _ in range(3):
        mixed.tick()
    mixed.submitted()
    assert mixed.batch.waiting[0] == (
        "1 trial for 1 node x 1 device: 0 nodes up, 4 in the queue."
    )
    waits = JobView(state=JobState.PENDING, reason="Resources")
    mixed.see(run_2=waits, run_3=waits, run_4=waits)
    mixed.up("run-1", "n1")
    mixed.place()
    mixed.tick()
    assert mixed.batch.waiting == [
        "2 trials for 3 nodes x 2 devices: 1 node up, 3 in the queue (Resources).",
        "the other trials for devices that are in use.",
    ]
    mixed.tick(is_stopped=True)
    assert mixed.batch.waiting == []


def test_why_a_job_waits_is_said_when_it_changes(scene: Callable[..., Scene]) -> None:
    waiting = scene()
    waiting.begin((1,))
    for reason in ("Priority", "Priority", "Resources"):
        view = JobView(
            state=JobState.PENDING, reason=reason, estimated_start="2026-11-21T04:00:00"
        )
        waiting.see(run_1=view)
        waiting.tick()
    assert waiting.said == [
        f"run-1 (job 1, 1 node): pending, {reason}, start expected 2026-11-21T04:00:00"
        for reason in ("Priority", "Resources")
    ]
    assert [line.reason for line in waiting.batch.lines] == ["Resources"]


def test_a_job_with_a_node_that_answers_is_not_pending(
    scene: Callable[..., Scene],
) -> None:
    whole = scene(provision="one_job")
    whole.begin((1, 1))
    whole.see(run_1=JobView(state=JobState.PENDING, reason="Priority"))
    states = []
    for name in ("a", "b"):
        whole.tick()
        states += [line.state for line in whole.batch.lines]
        whole.up("run-1", name)
    whole.tick()
    states += [line.state for line in whole.batch.lines]
    assert states == ["pending", "running", "up"]


def test_many_jobs_that_wait_are_said_once_each(scene: Callable[..., Scene]) -> None:
    many = scene()
    many.begin(*[(2,)] * 4)
    names = [name.replace("-", "_") for name in many.batch.requested]
    for minute, latest in enumerate(names):
        # Each look finds another job's reason changed, and all starts moved.
        reasons = {name: "Priority" for name in names} | {latest: "Resources"}
        start = f"2026-11-21T04:{minute:02d}:00"
        waits = {
            name: JobView(state=JobState.PENDING, reason=why, estimated_start=start)
            for name, why in reasons.items()
        }
        many.see(**waits)
        many.tick()
    told = [
        tuple(words.split(", start expected")[0].split(": ")) for words in many.said
    ]
    assert len(told) == len(set(told)) == 2 * len(names)


def test_nodes_that_wait_in_vain_for_others_end_the_sweep(
    scene: Callable[..., Scene],
) -> None:
    partial = scene()
    partial.begin((2, 2))
    partial.up("run-1", "a")
    partial.see(run_2=JobView(state=JobState.PENDING, reason="Resources"))
    partial.tick()
    partial.tick(99)
    why = r"1 node waited idle for 100 s, .*: 1 node up, 1 in the queue \(Resources\)"
    with pytest.raises(ClusterError, match=rf"^{why}\. Write provision: one_job"):
        partial.tick(2)


def test_a_node_of_an_unknown_job_is_sent_away(scene: Callable[..., Scene]) -> None:
    stray = scene()
    stray.up("run-7", "a")
    stray.tick()
    assert stray.batch.ended == ["run-7"]
    assert stray.pool.num_devices == 0


def test_a_job_near_its_end_is_exchanged_for_a_new_one(
    scene: Callable[..., Scene],
) -> None:
    late = scene(walltime="10min")
    late.begin((2,), duration_s=100)
    late.up("run-1", "a")
    late.see(run_1=JobView(state=JobState.RUNNING, remaining_s=100))
    late.tick()
    assert late.place() == [], "it would not end in time"
    assert late.batch.ended == ["run-1"]
    late.tick()
    late.submitted()
    assert list(late.batch.requested) == ["run-1", "run-2"]
    late.up("run-2", "a")
    late.see(run_2=JobView(state=JobState.RUNNING, remaining_s=598))
    late.tick()
    assert late.place() == [1]


def test_a_trial_longer_than_any_job_begins_on_a_new_one(
    scene: Callable[..., Scene],
) -> None:
    long = scene(walltime="10min")
    long.begin((2,), duration_s=10_000)
    long.up("run-1", "a")
    long.see(run_1=JobView(state=JobState.RUNNING, remaining_s=595))
    long.tick()
    assert long.place() == [1]


def test_nodes_that_answer_before_the_queue_says_so_have_a_limit_all_the_same(
    scene: Callable[..., Scene],
) -> None:
    early = scene(walltime="10min")
    early.begin((2,), duration_s=10_000)
    looked_s = early.clock.now_s
    early.see(run_1=JobView(state=JobState.PENDING, reason="Priority"))
    early.clock.now_s += 8.0
    early.up("run-1", "a")
    early.provision.meet_nodes()
    assert early.place() == [1]
    share = NodeShare(node="a/run-1", device_ids=("0",))
    left_s = early.pool.time_left_s(Placement(shares=(share,)))
    assert left_s == pytest.approx(looked_s + 600 - 15 - early.clock.now_s)


def test_the_queue_is_looked_at_often_after_a_change_and_then_less(
    scene: Callable[..., Scene],
) -> None:
    patient = scene(poll_interval="30s")
    patient.begin((1,))
    patient.see(run_1=JobView(state=JobState.PENDING, reason="Priority"))
    looks = []
    for _ in range(200):
        before = patient.batch.num_looks
        patient.tick()
        if patient.batch.num_looks > before:
            looks.append(patient.clock.now_s)
            patient.see(run_1=JobView(state=JobState.PENDING, reason="Priority"))
    pauses = [later - now for now, later in pairwise(looks)]
    assert pauses[0] <= 2
    assert max(pauses) == 30


def test_a_job_whose_node_answers_has_not_ended_whatever_the_queue_shows(
    scene: Callable[..., Scene],
) -> None:
    alive = scene()
    alive.begin((1,))
    alive.up("run-1", "a")
    for _ in range(3 * MISSING_LOOKS):
        alive.provision.take(QueueSeen({}, frozenset({"run-1"})))
        alive.tick(0.1)
    assert list(alive.batch.requested) == ["run-1"]
    alive.pool.leave("tls://a:run-1")
    alive.tick()
    alive.provision.take(QueueSeen({}, frozenset({"run-1"})))
    assert alive.batch.forgotten == ["run-1"]


def test_jobs_that_ended_are_asked_about_no_more(scene: Callable[..., Scene]) -> None:
    ended = scene()
    ended.begin((2,), (2,))
    ended.see(run_1=JobView(state=JobState.ENDED, reason="FAILED"))
    assert ended.batch.forgotten == ["run-1"]
    # What is suspended has not ended: it is cancelled.
    ended.see(run_2=JobView(state=JobState.RUNNING, is_suspended=True))
    assert ended.batch.forgotten == ["run-1"]
    assert ended.batch.ended == ["run-2"]


def test_nodes_that_take_long_to_join_are_not_exchanged_for_ever(
    scene: Callable[..., Scene],
) -> None:
    slow = scene(walltime="100s", start_timeout="60s")
    slow.wait_for(2, duration_s=90)
    for number in range(1, 20):
        slow.tick(1)
        name = f"run-{number}"
        if name not in slow.batch.requested:
            break
        slow.submitted()
        slow.see(
            **{name.replace("-", "_"): JobView(state=JobState.RUNNING, remaining_s=75)}
        )
        slow.up(name, f"host{number}")
        slow.tick(1)
        if slow.place():
            break
    # A quarter of the walltime is spent on joining, each time.
    assert slow.batch.ended == ["run-1", "run-2"]
    assert sum("given back for a newer one" in words for words in slow.said) == 2


def test_a_job_whose_node_does_not_come_back_is_replaced(
    scene: Callable[..., Scene],
) -> None:
    dark = scene(start_timeout="1h", max_idle="1h")
    dark.begin((2,), (2,))
    dark.up("run-1", "a")
    dark.up("run-2", "b")
    dark.see()
    dark.tick()
    dark.pool.leave("tls://a:run-1")
    dark.tick()
    dark.tick(RETURN_S - 10)
    assert dark.batch.ended == []
    dark.tick(20)
    assert dark.batch.ended == ["run-1"]
    dark.tick()
    assert list(dark.batch.requested) == ["run-1", "run-2", "run-3"]
