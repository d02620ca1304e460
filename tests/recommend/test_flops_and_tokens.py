"""Tokens per second and model FLOPs utilisation of the rows of an answer."""

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import refused

from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment
from scalelab.inputs.problems import validated
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import allocations

FLOPS, PEAK = 2e9, 1e13


@pytest.fixture(scope="module")
def language() -> Recommendation:
    job = Job(
        tokens=10_000_000_000,
        sequence_length=1024,
        flops_per_sample=FLOPS,
        device_peak_flops=PEAK,
    )
    return recommend(sweep(), job)


def test_rows_of_a_language_model_show_tokens_and_utilisation(
    language: Recommendation,
) -> None:
    table = allocations(language)
    titles = [table[name][0] for name in ("tokens", "utilization")]
    assert titles == ["fitted tokens/s", "MFU"]
    for row in language.rows:
        samples = row.throughput_samples_per_s
        assert row.throughput_tokens_per_s.value == pytest.approx(1024 * samples.value)
        assert row.throughput_tokens_per_s.hi == pytest.approx(1024 * samples.hi)
        used = samples.lo * FLOPS / (row.world_size * PEAK)
        assert row.flops_utilization.lo == pytest.approx(used)


def test_what_the_job_does_not_state_is_not_shown() -> None:
    answer = recommend(sweep(), Job(samples=10_000_000))
    assert not {"tokens", "utilization"} & set(allocations(answer))
    assert answer.to_json()["rows"][0]["throughput_tokens_per_s"] is None


@pytest.mark.slow
def test_what_each_curve_records_is_taken_where_the_job_does_not_say_it() -> None:
    flops = {2: FLOPS, 4: 2 * FLOPS}
    curves = [
        sweep(sequence_length=512, flops_per_sample=flops[n], **{"options.layers": n})
        for n in flops
    ]
    curves[1]["step_time_s"] *= 1.5
    rows = pd.concat(curves, ignore_index=True)
    answer = recommend(rows, Job(samples=10_000_000, device_peak_flops=PEAK))
    for row in answer.rows:
        samples = row.throughput_samples_per_s.value
        assert row.throughput_tokens_per_s.value == pytest.approx(512 * samples)
        used = samples * flops[row.settings["layers"]] / (row.world_size * PEAK)
        assert row.flops_utilization.value == pytest.approx(used)
    assert recommend(rows, Job(samples=10)).rows[0].flops_utilization is None


def test_a_job_of_other_sequences_than_were_measured_is_refused() -> None:
    rows = sweep(sequence_length=512)
    with refused("other_sequence_length", "job.sequence_length=1024", "512"):
        recommend(rows, Job(tokens=10_000, sequence_length=1024))


def test_several_sequence_lengths_are_asked_about_one_at_a_time() -> None:
    rows = pd.concat(
        [sweep(sequence_length=length, dataset=f"text {length}") for length in (8, 16)],
        ignore_index=True,
    )
    with refused("several_values", "2 values of sequence_length"):
        recommend(rows, Job(samples=10))
    answer = recommend(rows, Job(samples=10), select={"sequence_length": 16})
    samples = answer.rows[0].throughput_samples_per_s.value
    tokens = answer.rows[0].throughput_tokens_per_s
    assert tokens.value == pytest.approx(16 * samples)
    in_json = answer.to_json()["rows"][0]["throughput_tokens_per_s"]
    assert in_json["value"] == tokens.value


def test_operations_need_a_peak() -> None:
    with refused("operations_without_peak"):
        validated(Job, {"samples": 1000, "flops_per_sample": 1e9}, source="job")


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("command: python train.py {local_batch_size}", "a command"),
        ("workload: digits_mlp", "digits_mlp"),
        ("workload: transformer_lm", None),
        ("workload: own:Model", None),
    ],
)
def test_a_peak_needs_operations_that_something_tells(
    program: str, named: str | None
) -> None:
    text = (
        f"name: a\n{program}\ngpus: 1\nlocal_batch_size: 8\n"
        "job: {samples: 9, device_peak_flops: 1.0e+13}\n"
    )
    if named is None:
        assert Experiment.from_text(text).job.device_peak_flops == 1e13
        return
    with refused("operations_unknown", named):
        Experiment.from_text(text)
