"""Tokens per second and model FLOPs utilisation of the rows of an answer."""

import pytest
from made_up_sweeps import sweep

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.problems import validated
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.tables import allocations

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
    assert (table["tokens"][0], table["utilization"][0]) == ("tokens/s", "MFU")
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


@pytest.mark.parametrize("name", ["flops_per_sample", "device_peak_flops"])
def test_operations_need_a_peak(name: str) -> None:
    with pytest.raises(SpecError, match="Give both, or neither"):
        validated(Job, {"samples": 1000, name: 1e9}, source="job")
