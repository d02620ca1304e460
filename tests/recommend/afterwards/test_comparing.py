"""A job beside its answer: what is said of it, and which cause is named."""

from dataclasses import replace
from typing import Any

import pytest

from scalelab.inputs.numerals import Interval
from scalelab.recommend.afterwards.comparing import FollowedJob, compare_job
from scalelab.recommend.afterwards.promise import Promise
from scalelab.recommend.afterwards.words import followed_lines, usage_lines
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.job_steps import JobSteps

PROMISE = Promise(
    run="vit",
    workload="vit",
    device_name="A100",
    device_word="GPU",
    device_hour_word="GPU-h",
    mass=0.8,
    world_size=8,
    num_nodes=2,
    local_batch_size=16,
    global_batch_size=128,
    step_time_s=Interval(value=0.1, lo=0.095, hi=0.106),
    time_s=Interval(value=1030.0, lo=980.0, hi=1090.0),
    gpu_hours=Interval(value=2.29, lo=2.18, hi=2.42),
    num_steps=10_000,
    start_up_s=30.0,
)
JOB = AccountedJob(
    job_id="7",
    name="vit",
    state="COMPLETED",
    did_complete=True,
    num_nodes=2,
    num_cores=16,
    num_gpus=8,
    gpu_type=None,
    submitted_s=900.0,
    started_s=1000.0,
    elapsed_s=1035.0,
    limit_s=36000.0,
    cpu_s=8000.0,
    memory_asked_bytes=64 * 2**30,
    memory_used_bytes=8 * 2**30,
    gpu_utilization=None,
    log=None,
)
STEPS = JobSteps(
    num_steps=10_000,
    step_time_s=0.1,
    global_batch_size=128,
    data_wait_s=0.001,
    forward_s={"n1": 0.030, "n2": 0.031},
    began_s=1031.0,
    ended_s=2034.0,
    peak_bytes=4 * 2**30,
    code=7,
)
TRIAL = replace(STEPS, num_steps=50, forward_s={"n3": 0.030, "n4": 0.030})


def found(
    steps: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    trials: tuple[JobSteps, ...] = (TRIAL,),
) -> FollowedJob:
    return compare_job(
        PROMISE,
        replace(STEPS, **(steps or {})),
        replace(JOB, **(job or {})),
        trials,
    )


def kinds(job: FollowedJob) -> list[str]:
    return [cause.kind for cause in job.causes]


def test_a_job_as_predicted_is_within_and_has_no_cause() -> None:
    job = found()
    assert {c.name: c.judgement for c in job.compared} == dict.fromkeys(
        ("step_time_s", "time_s", "gpu_hours", "peak_bytes"), "within"
    )
    assert kinds(job) == []
    assert job.was_as_asked
    assert "Why" not in "\n".join(followed_lines(job))


@pytest.mark.parametrize(
    ("steps", "job", "kind", "words"),
    [
        (
            {"global_batch_size": 64, "step_time_s": 0.06},
            {"elapsed_s": 640.0},
            "another_batch",
            "A step drew 64 samples; the answer is about 128.",
        ),
        (
            {},
            {"num_gpus": 16, "num_nodes": 4},
            "other_devices",
            "It held 16 GPUs on 4 nodes; the answer is about 8 GPUs on 2 nodes.",
        ),
        ({"code": 8}, {}, "other_code", "are not those that the trials ran."),
        (
            {"step_time_s": 0.15, "forward_s": {"n1": 0.030, "n2": 0.062}},
            {"elapsed_s": 1535.0},
            "slower_node",
            "On n2 a forward pass, which waits for nobody, took 2.1 times as long as "
            "in the trials.",
        ),
        (
            {"step_time_s": 0.07, "forward_s": {"n1": 0.015, "n2": 0.015}},
            {"elapsed_s": 735.0},
            "faster_nodes",
            "On n1, n2 a forward pass",
        ),
        (
            {"step_time_s": 0.15, "data_wait_s": 0.05},
            {"elapsed_s": 1535.0},
            "input",
            "A step waited 50 ms for its batch, in the trials 1 ms.",
        ),
        (
            {"began_s": 1330.0, "ended_s": 2333.0},
            {"elapsed_s": 1335.0},
            "start_up",
            "The first step came after 5.5 min; the answer has 30 s for it.",
        ),
        (
            {"ended_s": 2434.0},
            {"elapsed_s": 1435.0},
            "pauses",
            "6.7 min between its steps were no steps",
        ),
    ],
)
def test_one_thing_that_differs_is_the_cause(
    steps: dict[str, Any], job: dict[str, Any], kind: str, words: str
) -> None:
    followed = found(steps, job)
    assert kinds(followed) == [kind]
    assert words in " ".join(followed_lines(followed))
    others = ("another_batch", "other_devices", "other_code")
    assert followed.was_as_asked == (kind not in others)


def test_a_slow_node_is_known_from_the_others_where_no_trial_tells() -> None:
    slow = {"step_time_s": 0.15, "forward_s": {"n1": 0.030, "n2": 0.062}}
    job = found(slow, {"elapsed_s": 1535.0}, trials=())
    assert kinds(job) == ["slower_node"]
    assert "on its other nodes" in " ".join(followed_lines(job))


def test_one_faster_node_explains_nothing() -> None:
    fast = {"step_time_s": 0.07, "forward_s": {"n1": 0.030, "n2": 0.010}}
    job = found(fast, {"elapsed_s": 735.0})
    assert kinds(job) == []
    assert "Why: not known. Its devices" in " ".join(followed_lines(job))


def test_a_part_that_explains_little_is_no_cause() -> None:
    """Of 50 ms more, 11 ms of input are no cause; nor are 4 s of start-up."""
    job = found(
        {"step_time_s": 0.15, "data_wait_s": 0.012, "began_s": 1034.0},
        {"elapsed_s": 1535.0},
    )
    assert "input" not in kinds(job)
    assert "start_up" not in kinds(job)


def test_a_job_of_other_length_is_held_against_as_many_steps() -> None:
    job = found({"num_steps": 5_000, "ended_s": 1532.0}, {"elapsed_s": 533.0})
    by_name = {compared.name: compared for compared in job.compared}
    time, hours = by_name["time_s"], by_name["gpu_hours"]
    assert time.predicted.value == pytest.approx(530.0)
    assert time.judgement == "within"
    assert hours.true == pytest.approx(533 * 8 / 3600)
    assert hours.judgement == "within"


def test_what_was_not_seen_is_not_compared() -> None:
    failed = replace(JOB, did_complete=False, state="FAILED")
    assert compare_job(PROMISE, None, failed, ()).compared == ()
    whole = compare_job(PROMISE, None, JOB, ())
    assert [c.name for c in whole.compared] == ["time_s", "gpu_hours"]
    late = compare_job(PROMISE, None, replace(JOB, elapsed_s=2000.0), ())
    assert "Nothing was seen inside the job" in " ".join(followed_lines(late))


def test_a_promise_is_read_back_as_it_was() -> None:
    assert Promise.from_json(PROMISE.to_json()) == PROMISE
    open_end = replace(PROMISE, time_s=Interval(value=1.0, lo=0.5, hi=float("inf")))
    assert Promise.from_json(open_end.to_json()) == open_end
    assert open_end.digest != PROMISE.digest


def test_what_a_job_used_of_what_it_asked_for() -> None:
    lines = "\n".join(usage_lines(JOB))
    assert "17.2 min  of 10 h asked for (3%); 25 min would do" in lines
    assert "of 64 GiB asked for (12%); 10 GiB would do" in lines
    assert "7.7  of 16 busy on average (48%)" in lines
    assert "how busy they were is not known" in lines


def test_no_job_is_told_to_ask_for_no_time() -> None:
    short = replace(JOB, elapsed_s=0.0, cpu_s=None, memory_used_bytes=None)
    assert "10 h asked for (0%); 5 min would do" in "\n".join(usage_lines(short))
    (line,) = usage_lines(replace(short, limit_s=60.0, num_gpus=0))
    assert line.endswith("of 60 s asked for (0%)")


@pytest.mark.parametrize(
    ("elapsed_s", "judgement"),
    [(978.0, "below"), (979.5, "within"), (1090.9, "within"), (1092.0, "above")],
)
def test_whole_seconds_are_no_difference(elapsed_s: float, judgement: str) -> None:
    compared = {c.name: c for c in found(job={"elapsed_s": elapsed_s}).compared}
    assert compared["time_s"].judgement == judgement


def test_a_job_that_did_not_end_well_gets_no_advice() -> None:
    lines = "\n".join(usage_lines(replace(JOB, did_complete=False)))
    assert "would do" not in lines
    busy = "\n".join(usage_lines(replace(JOB, gpu_utilization=0.43, limit_s=None)))
    assert "busy 43% of the time" in busy
    assert "without a limit" in busy
