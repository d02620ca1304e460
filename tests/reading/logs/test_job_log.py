"""The log of a whole job: steps, step time and batch."""

import re
import time
from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.program import MetricsSource
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.reading.logs.job_log import read_job_log
from scalelab.records.afterwards.job_steps import JobSteps

TRIAL = Trial(
    kind=TrialKind.THROUGHPUT,
    workload="vit",
    allocation=Allocation.packed(4, devices_on_node=4),
    local_batch_size=16,
)
SOURCE = MetricsSource(regex=(r"step (?P<step>\d+)", r"samples (?P<samples>\d+)\b"))


def read(
    folder: Path,
    *lines: str,
    source: MetricsSource | None = SOURCE,
    elapsed_s: float | None = None,
) -> JobSteps:
    (folder / "job.out").write_text("\n".join(["Loading", *lines, "Done"]))
    return read_job_log(folder / "job.out", source, TRIAL, elapsed_s)


def test_counted_samples_tell_the_batch_of_a_step(tmp_path: Path) -> None:
    found = read(tmp_path, *(f"step {n} samples {32 * n}" for n in range(10, 101, 10)))
    assert found == JobSteps(num_steps=100, step_time_s=None, global_batch_size=32)


def test_a_clock_beside_the_steps_tells_their_time(tmp_path: Path) -> None:
    source = MetricsSource(regex=(r"step (?P<step>\d+) at (?P<t>[\d.]+)",))
    lines = [f"step {n} at {0.25 * n + (100 if n > 50 else 0)}" for n in range(1, 101)]
    found = read(tmp_path, *lines, source=source)
    assert (found.num_steps, found.step_time_s) == (100, 0.25)


def test_a_log_of_any_length_is_read(tmp_path: Path) -> None:
    """The format is found on the first part; 300,000 steps take seconds."""
    log = tmp_path / "job.out"
    words = "lr 0.0010 grad_norm 1.2034"
    log.write_text(
        "\n".join(
            f"step {n} loss {3 / n:.4f} {words} {49 + n % 3} ms/step"
            for n in range(1, 300_001)
        )
    )
    assert log.stat().st_size > 16 << 20

    began_s = time.process_time()
    found = read_job_log(log, None, TRIAL, None)
    read_s, began_s = time.process_time() - began_s, time.process_time()
    expression = re.compile(rb"step (\d+) loss (\S+) .* (\d+) ms")
    assert all(map(expression.match, log.read_bytes().split(b"\n")))
    matched_s = time.process_time() - began_s
    assert read_s < 60 * matched_s  # seen: 20
    assert found.num_steps == 300_000
    assert found.step_time_s == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(
    ("words", "elapsed_s", "seconds"),
    [
        ("300.0 ms/step", None, 0.3),
        ("160 samples/s/gpu", None, 0.1),
        ("640 samples/s", None, None),  # of one rank, or of all
        ("640 samples/s", 6.0, 0.1),
        ("160 samples/s", 6.0, 0.1),
        ("160 samples/s", 22.0, 0.4),
        ("640 samples/s", 100.0, None),  # neither: the job took far longer
    ],
)
def test_a_printed_rate_tells_the_time(
    words: str, elapsed_s: float | None, seconds: float | None, tmp_path: Path
) -> None:
    lines = [f"step {n} | {words}" for n in range(1, 51)]
    found = read(tmp_path, *lines, elapsed_s=elapsed_s)
    assert found.num_steps == 50
    assert found.step_time_s == (seconds and pytest.approx(seconds))


def test_a_training_that_goes_on_counts_its_own_steps(tmp_path: Path) -> None:
    assert (
        read(tmp_path, *(f"step {n}" for n in range(5010, 5101, 10))).num_steps == 100
    )


def test_how_many_steps_there_will_be_is_none_of_them(tmp_path: Path) -> None:
    steps = (f"step {n}" for n in range(100, 2001, 100))
    assert read(tmp_path, "up to step 20000", *steps).num_steps == 2000


def test_what_no_experiment_describes_is_found_in_the_log(tmp_path: Path) -> None:
    lines = [f"Iteration {n}/500  loss 0.{n:03}" for n in range(20, 501, 20)]
    assert read(tmp_path, *lines, source=None).num_steps == 500
    assert read(tmp_path, *lines, source=SOURCE).num_steps == 500


def test_a_log_without_steps_is_refused(tmp_path: Path) -> None:
    with refused("no_steps", "job.out"):
        read(tmp_path, "nothing here")
    with pytest.raises(SpecError, match=r"cannot be read: No such file"):
        read_job_log(tmp_path / "no.out", None, TRIAL, None)
