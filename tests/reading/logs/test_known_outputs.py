"""What well-known programs print is read with their presets.

``samples/outputs`` holds it, one file per preset; the first lines of a file say which
program and version it is from. The times are given here: a second for each step, and
more for every line of an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from command_specs import command_spec

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import MetricsSource
from scalelab.launch.command.steps import StepLog
from scalelab.reading.logs.files import FollowedFile
from scalelab.reading.logs.lines import Report, ReportReader

OUTPUTS = Path(__file__).parents[1] / "samples" / "outputs"
STEP_S, EVALUATION_S = 1.0, 7.0


@dataclass(frozen=True)
class Known:
    """What is known of a sample of output; no step follows its last evaluation."""

    steps: Sequence[int]
    metrics: dict[str, float]
    evaluations: int
    global_batch_size: int = 8
    accumulation: int = 1


KNOWN = {
    "huggingface": Known(
        steps=[*range(25)],
        metrics={"loss": 1.384, "eval_loss": 1.382},
        evaluations=2,
    ),
    "accelerate": Known(
        steps=[*range(9)],
        metrics={"loss": 0.0375},
        evaluations=1,
        accumulation=2,
    ),
    "lightning": Known(
        steps=[*range(11)],
        metrics={"train_loss": 1.17, "val_loss": 1.22},
        evaluations=1,
        accumulation=2,
    ),
    "nanogpt": Known(
        steps=[0, *range(210, 280, 10)],
        metrics={"loss": 2.0043, "val_loss": 2.0831},
        evaluations=1,
    ),
    "imagenet": Known(
        steps=[1, 11, 21, 26, 36],
        metrics={"loss": 6.9002, "val_acc1": 0.138},
        evaluations=1,
    ),
    "metric_logger": Known(
        steps=[0, 20, 40, 41, 61],
        metrics={"loss": 6.2, "val_acc1": 1.25},
        evaluations=1,
    ),
    "timm": Known(
        steps=[0, 50, 100, 101, 151],
        metrics={"loss": 6.65, "val_acc1": 0.981},
        evaluations=1,
        accumulation=2,
    ),
    "open_clip": Known(
        steps=[1, 2, 101, 400, 401, 501],
        metrics={"epoch": 1, "loss": 2.9},
        evaluations=1,
        global_batch_size=16,
    ),
    "mnist": Known(
        steps=[0, 10, 20, 930, 938, 948, 958, 1868],
        metrics={"epoch": 2, "loss": 0.57},
        evaluations=1,
        global_batch_size=64,
    ),
    "keras": Known(
        # The first bars of the sample do not show every step.
        steps=[1, 2, *range(4, 25)],
        metrics={"loss": 1.3107, "val_loss": 1.2996, "val_accuracy": 0.2969},
        evaluations=1,
    ),
    "torchtitan": Known(
        steps=[1, 10, 20, 30],
        metrics={"loss": 6.6, "val_loss": 7.3},
        evaluations=1,
    ),
    "megatron": Known(
        steps=[10, 20, 1000, 1100],
        metrics={"lm_loss": 5.352916, "val_lm_loss": 6.439325},
        evaluations=1,
        global_batch_size=16,
    ),
}


def source_of(name: str) -> MetricsSource:
    row = PRESETS[name]
    return MetricsSource(regex=row.regex, evaluation=row.evaluation)


def reports_of(name: str, directory: Path, accumulation: int) -> list[Report]:
    """Return what is read of a sample, as of the output of a running command."""
    output = directory / "rank0.log"
    output.touch()
    file = FollowedFile(output)
    output.write_bytes((OUTPUTS / f"{name}.txt").read_bytes())
    known = KNOWN[name]
    reader = ReportReader(source_of(name), accumulation, known.global_batch_size)
    lines = [*file.lines()]
    file.close()
    return [report for line in lines if (report := reader.read(line))]


def test_there_is_a_sample_of_every_preset() -> None:
    assert PRESETS.keys() == KNOWN.keys()
    assert {file.stem for file in OUTPUTS.iterdir()} == PRESETS.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_steps_metrics_and_evaluations_are_read(name: str, tmp_path: Path) -> None:
    known = KNOWN[name]
    reports = reports_of(name, tmp_path, known.accumulation)
    trial = command_spec(
        tmp_path,
        warmup_steps=0,
        accumulation=known.accumulation,
        global_batch_size=known.global_batch_size,
    ).trial
    log, now_s, steps = StepLog(trial, may_repeat=True, names_evaluations=True), 0.0, []
    for report in reports:
        if report.is_evaluation:
            now_s += EVALUATION_S
        elif report.step not in (None, *steps[-1:]):
            now_s += STEP_S * (report.step - steps[-1] if steps else 0)
            steps.append(report.step)
        log.take([report], now_s)
    assert steps == known.steps
    assert log.metrics == pytest.approx(known.metrics)
    assert log.step_columns()["step_time_s"] == pytest.approx(STEP_S)
    assert log.intervals.num_evaluations == known.evaluations
    gaps = [after - before for before, after in pairwise(known.steps)]
    assert 0 < log.intervals.num_steps < sum(gaps)


@pytest.mark.parametrize("name", KNOWN)
def test_other_presets_read_no_step_of_it(name: str, tmp_path: Path) -> None:
    # Scripts that use accelerate draw nameless bars as a Trainer does, those of
    # diffusers to validate. Lines of the MNIST example are those of open_clip, but for
    # a tab.
    alike = {
        "huggingface": {"accelerate"},
        "accelerate": {"huggingface"},
        "mnist": {"open_clip"},
    }
    for other in PRESETS.keys() - {name} - alike.get(name, set()):
        source = source_of(other)
        reader = ReportReader(source)
        text = (OUTPUTS / f"{name}.txt").read_bytes().replace(b"\r", b"\n")
        reports = [reader.read(line) for line in text.split(b"\n")]
        assert not [each for each in reports if each and each.step is not None], other


@pytest.mark.parametrize(
    "line",
    [
        b"Map: 100%|##########| 2000/2000 [00:00<00:00, 9 examples/s]",
        b"Loading weights:  50%|#####     | 1/2 [00:00<00:00, 3.2it/s]",
        b"step: 3 of warm-up",
        b"30/30 - 7s - 218ms/step - accuracy: 0.3438 - loss: 1.1812",
        b"[titan] - root - INFO - Training starts at step 1.",
        b"saving checkpoint at iteration    5000 to /models",
    ],
)
def test_lines_like_those_of_steps_are_none(line: bytes) -> None:
    reports = [ReportReader(source_of(name)).read(line) for name in PRESETS]
    assert not [each for each in reports if each and each.step is not None]
