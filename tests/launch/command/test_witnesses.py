"""What a command prints is held against something else: programs that lie, and do not.

The lines are made here, with their times; real programs that print such lines are in
``test_lying_programs.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from command_specs import command_spec
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import MetricsSource
from scalelab.experiment.trial import Trial
from scalelab.launch.command.steps import StepLog
from scalelab.reading.logs.lines import ReportReader

STEP_S = 0.5
STEPS = r"step (?P<step>\d+)"
OPEN_CLIP = r"\[ *(?P<step>\d+)/"


def trial_of(directory: Path, **values: Any) -> Trial:
    return command_spec(directory, warmup_steps=2, **values).trial


def log_of(
    trial: Trial,
    lines: Iterable[str],
    regex: str | tuple[str, ...] = STEPS,
    *,
    line_s: float = STEP_S,
    tokens_per_sample: int | None = None,
) -> StepLog:
    """Return what is read of lines that are printed in equal distances of time."""
    patterns = (regex,) if isinstance(regex, str) else regex
    reader = ReportReader(
        MetricsSource(regex=patterns),
        trial.gradient_accumulation_steps,
        trial.global_batch_size,
        trial.data_parallel_size,
    )
    log = StepLog(
        trial,
        may_repeat=True,
        tokens_per_sample=tokens_per_sample,
    )
    for number, line in enumerate(lines):
        if report := reader.read(line.encode()):
            log.take([report], number * line_s)
    return log


def test_samples_that_are_called_steps_are_found_by_the_rate(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=16)
    rate = f"{16 / STEP_S} samples/s"
    lines = [f"Train Epoch: 0 [{16 * n:>4}/6400 (0%)] {rate}" for n in range(1, 9)]
    columns = log_of(trial, lines, OPEN_CLIP).step_columns()
    assert columns["validity"] == ["rate_disagrees"]
    right = r"\[ *(?P<samples_of_epoch>\d+)/(?P<samples_in_epoch>\d+)"
    columns = log_of(trial, lines, right).step_columns()
    assert columns["step_time_s"] == pytest.approx(STEP_S)
    assert "validity" not in columns


def test_steps_that_are_reported_at_intervals_are_steps(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=8)
    for interval in (1, 5, 10, 16):
        log = log_of(trial, [f"step {interval * n}" for n in range(9)])
        assert log.num_seen == interval * 8


def test_samples_of_each_pass_make_steps(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ranks=2, accumulation=4, global_batch_size=64)
    of_passes = r"\[(?P<samples_of_epoch>\d+)/"
    lines = [f"[{16 * n}/640" for n in range(1, 33)]
    assert log_of(trial, lines, of_passes).num_seen == 8
    with pytest.raises(SpecError, match="those of one rank"):
        log_of(trial, [f"[{8 * n}/640" for n in range(1, 33)], of_passes)


def test_samples_of_a_smaller_last_batch_begin_no_epoch(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=64)
    regex = (
        r"Epoch: (?P<epoch>\d+) \[(?P<samples_of_epoch>\d+)/(?P<samples_in_epoch>\d+)"
    )
    # 157 batches, the last one of 16: 156 x 16 is what the program prints for it.
    counts = [(1, 9856), (1, 9920), (1, 156 * 16), (2, 0), (2, 64)]
    lines = [f"Epoch: {epoch} [{count}/10000" for epoch, count in counts]
    log = log_of(trial, lines, regex)
    assert log.last_step == 158
    # The line between two epochs is none, so two steps end in one interval.
    assert log.intervals.num_steps == 3
    assert log.intervals.step_times_s() == pytest.approx(STEP_S)


def test_samples_of_one_rank_are_refused(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ranks=2, global_batch_size=32)
    with refused("other_samples", "samples_of_epoch", "16", "global_batch_size=32"):
        log_of(trial, ["[16/640", "[32/640"], r"\[(?P<samples_of_epoch>\d+)/")


def test_an_epoch_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=8)
    regex = r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+)"
    epochs = [*range(1, 31), *range(1, 31)]
    with refused("epoch_cut_short", "batch_of_epoch", "30 of 128"):
        log_of(trial, [f"{n}/128" for n in epochs], regex)
    without_length = r"(?P<batch_of_epoch>\d+)/"
    assert log_of(trial, [f"{n}/128" for n in epochs], without_length).num_seen == 60
    honest = [f"{n}/128" for n in (10, 60, 110, 10, 60)]  # the last 18 have no line
    assert log_of(trial, honest, regex).last_step == 188


def test_samples_of_one_rank_are_multiplied(tmp_path: Path) -> None:
    """As scripts print them that are written after PyTorch's MNIST example."""
    trial = trial_of(tmp_path, ranks=2, global_batch_size=128)
    lines = [f"Train Epoch: 1 [{640 * n}/60000" for n in range(40)]
    counted = r"\[(?P<samples_of_rank>\d+)/(?P<samples_in_epoch>\d+)"
    assert log_of(trial, lines, counted).last_step == 640 * 39 / 64


def mnist_lines(
    *, counts: int, length: int, num_batches: int, epochs: int = 1
) -> list[str]:
    """Return lines like those of PyTorch's MNIST example, one for ten batches of 64."""
    return [
        f"Train Epoch: {epoch} [{at * 64 * counts}/{length} "
        f"({100 * at / num_batches:.0f}%)]\tLoss: 2.3"
        for epoch in range(1, 1 + epochs)
        for at in range(0, num_batches, 10)
    ]


@pytest.mark.parametrize(
    "length",
    [60000, pytest.param(30000, id="of one rank, as Horovod's example prints it")],
)
def test_lines_like_the_mnist_example_are_of_one_rank(
    tmp_path: Path, length: int
) -> None:
    trial = trial_of(tmp_path, ranks=2, global_batch_size=128)
    lines = mnist_lines(counts=1, length=length, num_batches=469, epochs=3)
    (counted,) = PRESETS["mnist"].regex
    num_steps = log_of(trial, lines, counted).last_step
    # Where the length is of one rank the end of an epoch is not known.
    assert num_steps == pytest.approx(2 * 469 + 460, abs=2 * 9)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_percentage_shows_that_samples_are_of_one_rank(
    tmp_path: Path, ranks: int
) -> None:
    trial = trial_of(tmp_path, ranks=ranks, global_batch_size=64 * ranks)
    num_batches = 60000 // (64 * ranks)
    counted = PRESETS["open_clip"].regex[0]
    lines = mnist_lines(counts=1, length=60000, num_batches=num_batches)
    with pytest.raises(SpecError, match=f"one of {ranks} ranks.* samples_of_rank"):
        log_of(trial, lines[:5], counted)

    num_steps = num_batches // 10 * 10
    mended = counted.replace("samples_of_epoch", "samples_of_rank")
    assert log_of(trial, lines, mended).last_step == num_steps
    honest = mnist_lines(counts=ranks, length=60000, num_batches=num_batches)
    assert log_of(trial, honest, counted).last_step == num_steps


def test_a_percentage_of_an_evaluation_says_nothing(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ranks=2, global_batch_size=128)
    lines = mnist_lines(counts=2, length=60000, num_batches=469)[:5]
    lines += mnist_lines(counts=1, length=10000, num_batches=78)
    assert log_of(trial, lines, PRESETS["open_clip"].regex[0]).last_step == 40


@pytest.mark.parametrize("num_batches", [2, 5, 40, 400])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_percentage_of_all_ranks_is_not_doubted(
    tmp_path: Path, num_batches: int, ahead: int
) -> None:
    """It may be rounded to whole numbers, and of the step that comes next."""
    trial = trial_of(tmp_path, ranks=2, global_batch_size=128)
    length = 128 * num_batches
    lines = [
        f"Train Epoch: 0 [{128 * at}/{length} ({100 * (at + ahead) // num_batches}%)]"
        for at in range(num_batches)
    ]
    found = log_of(trial, lines, PRESETS["open_clip"].regex[0])
    assert found.last_step == num_batches - 1


def rated(
    trial: Trial, rate: str, *, counts: int = 1, **known: Any
) -> tuple[float | None, list[str]]:
    """Return the step time by the rate that a program prints, and what it is marked."""
    lines = [f"step {n} | loss 0.5 | {rate}" for n in range(1, 20)]
    columns = log_of(trial, lines, line_s=STEP_S / counts, **known).step_columns()
    return columns.get("reported_step_time_s"), columns.get("validity", [])


@pytest.mark.parametrize(
    "rate",
    [
        "32.0 samples/s",
        "imgs/s: 31.5",
        "0.51 s/it",
        "1.98 it/s",
        "512.2ms/step",
        "time 501.22ms, mfu 3.4%",
        "Time  0.505 ( 0.623)  Data 0.1 (0.1)",
        "time: 0.5021  data: 0.0003  max mem: 8000",
        "samples_per_second: 32.1",
    ],
)
def test_a_truthful_program_is_not_doubted(tmp_path: Path, rate: str) -> None:
    reported, marks = rated(trial_of(tmp_path, global_batch_size=16), rate)
    assert reported == pytest.approx(STEP_S, rel=0.05)
    assert marks == []


@pytest.mark.parametrize(
    "rate",
    ["2.5% done", "0.5 s", "0.5s/it", "train_samples_per_second: 3.1", "32 GB/s"],
)
def test_what_is_no_rate_or_too_coarse_is_none(tmp_path: Path, rate: str) -> None:
    assert rated(trial_of(tmp_path, global_batch_size=16), rate) == (None, [])


def test_passes_that_are_called_steps_are_found_by_samples_per_s(
    tmp_path: Path,
) -> None:
    trial = trial_of(tmp_path, accumulation=2, global_batch_size=16)
    right = f"{16 / STEP_S} samples/s"
    assert rated(trial, right) == (pytest.approx(STEP_S), [])
    assert rated(trial, right, counts=2) == (pytest.approx(STEP_S), ["rate_disagrees"])


def test_seconds_per_iteration_cannot_tell_passes_from_steps(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, accumulation=2, global_batch_size=16)
    for rate in (f"{STEP_S:.3f} s/it", f"{STEP_S / 2:.3f} s/it"):
        assert rated(trial, rate) == (None, [])
    # What is neither is said all the same.
    assert rated(trial, "3.000 s/it")[0] == pytest.approx(3.0)


def test_a_rate_may_be_of_one_rank_or_of_all(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ranks=2, global_batch_size=32)
    for rate in (32 / STEP_S, 16 / STEP_S):
        assert rated(trial, f"{rate} samples/s") == (pytest.approx(STEP_S), [])
    assert rated(trial, f"{16 / STEP_S} samples/s/gpu") == (pytest.approx(STEP_S), [])
    # Said to be of one rank, it leaves no such excuse.
    reported, marks = rated(trial, f"{32 / STEP_S} samples/s/gpu")
    assert (reported, marks) == (pytest.approx(STEP_S / 2), ["rate_disagrees"])


def test_ranks_do_not_excuse_the_same_number_of_passes(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, ranks=2, accumulation=2, global_batch_size=32)
    rate = f"{32 / STEP_S} samples/s"
    assert rated(trial, rate) == (None, [])
    assert rated(trial, rate, counts=2) == (None, [])


def test_a_clock_that_leaves_something_out_is_said_and_no_mark(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=64)
    reported, marks = rated(trial, "208.7 ms/it")  # 2.4 times less
    assert (reported, marks) == (pytest.approx(0.2087), [])


def test_samples_beside_steps_have_shown_what_is_counted(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, accumulation=2, global_batch_size=16)
    regex = (STEPS, r"samples (?P<samples>\d+)")
    lines = [f"step {n} samples {16 * n} | 16.0 img/s" for n in range(1, 20)]
    columns = log_of(trial, lines, regex).step_columns()
    assert columns["reported_step_time_s"] == pytest.approx(1.0)
    assert "validity" not in columns


def test_tokens_per_s_tell_where_the_job_says_their_number(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=16)
    rate = f"tok/sec: {16 * 1024 / STEP_S}"
    assert rated(trial, rate) == (None, [])
    assert rated(trial, rate, tokens_per_sample=1024) == (pytest.approx(STEP_S), [])
    assert rated(trial, rate, tokens_per_sample=1024, counts=16) == (
        pytest.approx(STEP_S),
        ["rate_disagrees"],
    )


def test_rates_between_the_lines_of_steps_count_too(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=16)
    lines = [
        line
        for n in range(1, 20)
        for line in (f"step {n}", "throughput 32.0 samples/s", "eval: 900.0 samples/s")
    ]
    columns = log_of(trial, lines, line_s=STEP_S / 3).step_columns()
    assert columns["reported_step_time_s"] == pytest.approx(STEP_S)


def test_rates_of_the_warm_up_are_left_out(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=16)
    lines = [f"step {n} | {3.0 if n < 3 else 32.0} samples/s" for n in range(1, 6)]
    columns = log_of(trial, lines).step_columns()
    assert columns["reported_step_time_s"] == pytest.approx(STEP_S)


def test_a_mean_that_holds_the_first_steps_is_no_rate(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, global_batch_size=16)

    def reported(first: float) -> float | None:
        """Smooth as tqdm does: the first step takes so many times as long."""
        mean, lines = 0.0, []
        for n in range(1, 13):
            mean = 0.7 * mean + 0.3 * STEP_S * (first if n == 1 else 1)
            bar = f"{n}/99 [00:01<00:40, {mean / (1 - 0.7**n):.3f}s/it]"
            lines.append(f"step {n} {bar}")
        found = log_of(trial, lines).step_columns().get("reported_step_time_s")
        assert found is None or isinstance(found, float)
        return found

    assert reported(1) == pytest.approx(STEP_S)
    assert reported(5) is None or reported(5) == pytest.approx(STEP_S, rel=0.25)
    for first in (20, 100, 400):  # a step that compiles
        assert reported(first) is None
