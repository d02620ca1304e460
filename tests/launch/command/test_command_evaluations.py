"""Commands that evaluate between their steps, and progress bars, as real processes.

Where a time matters the program says it by a clock of its own, so that nothing depends
on how busy the machine is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_specs import GLOBAL_BATCH, command_spec

from scalelab.experiment.program import (
    METRICS_FILE,
    CommandProgram,
    MetricsSource,
    program_from_json,
    program_to_json,
)
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.timing import Limits
from scalelab.records.attempt import AttemptResult
from scalelab.records.observations import program_hash
from scalelab.records.streams import read_lines

STEP_S, EVALUATION_S = 0.1, 3.0
# As nanoGPT prints: an evaluation before every 25th step, losses every step. What one
# iteration takes is added to a clock that the log line shows.
LANGUAGE_MODEL = f"""
import time
clock, loss = 100.0, 4.0
for iteration in range(2000):
    if iteration % 25 == 0:
        clock += {EVALUATION_S}
        loss *= 0.9
        print(f"step {{iteration}}: train loss {{loss:.4f}}, val loss {{loss:.4f}}")
    clock += {STEP_S}
    time.sleep(0.001)
    print(f"iter {{iteration}}: loss {{loss:.4f}}, clock {{clock:.3f}}s, mfu 31.2%")
"""
STEPS = (
    r"iter (?P<step>\d+): loss (?P<loss>\S+),",
    r"clock (?P<t>[\d.]+)s",
    r"val loss (?P<val_loss>\S+)",
)
UNNAMED = MetricsSource(regex=STEPS)
NAMED = MetricsSource(regex=STEPS, evaluation=("val loss",))


def measured(agent: NodeAgent, directory: Path, **asked: Any) -> dict[str, Any]:
    result = agent.run(command_spec(directory, **asked), 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    return dict(result.measurements)


@pytest.mark.slow
def test_steps_with_an_evaluation_in_between_are_not_steps(
    agent: NodeAgent, tmp_path: Path
) -> None:
    plain, named = (
        measured(agent, tmp_path / name, text=LANGUAGE_MODEL, metrics=metrics, steps=90)
        for name, metrics in (("plain", UNNAMED), ("named", NAMED))
    )
    # Every 25th step holds an evaluation of 30 steps' length.
    assert plain["step_time_s"] > 1.8 * STEP_S
    assert "evaluation_s" not in plain
    assert named["step_time_s"] == pytest.approx(STEP_S)
    seen = round(named["evaluation_s"] / EVALUATION_S)
    assert seen >= 3
    assert named["evaluation_s"] == pytest.approx(seen * EVALUATION_S)
    assert named["evaluation_interval_samples"] == 25 * GLOBAL_BATCH
    assert named["throughput_samples_per_s"] == pytest.approx(GLOBAL_BATCH / STEP_S)


def test_a_convergence_trial_whose_evaluations_are_named_has_step_times(
    agent: NodeAgent, tmp_path: Path
) -> None:
    asked = {
        "text": LANGUAGE_MODEL,
        "kind": TrialKind.CONVERGENCE,
        "target": "val_loss <= 3",
        "max_samples": 1000 * GLOBAL_BATCH,
    }
    plain = measured(agent, tmp_path / "plain", metrics=UNNAMED, **asked)
    named = measured(agent, tmp_path / "named", metrics=NAMED, **asked)
    # 4 x 0.9^3 is below 3: at the third evaluation, after iterations 0 to 49. What is
    # reported as 0 counts as the state before the first step.
    for found in (plain, named):
        assert found["samples_to_target"] == 49 * GLOBAL_BATCH
        assert found["final_metric"] == pytest.approx(4 * 0.9**3)
    assert "step_time_s" not in plain
    assert named["step_time_s"] == pytest.approx(STEP_S)
    # The evaluation before the first step is no part of the training either way.
    assert plain["time_to_target_s"] == pytest.approx(49 * STEP_S + EVALUATION_S)
    assert named["time_to_target_s"] == pytest.approx(49 * STEP_S)


JSON_LINES = f"""
import json, os, time
clock = 0.0
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    for step in range(1, 500):
        clock += {STEP_S}
        line = {{"step": step, "samples": 8 * step}}
        if step % 20 == 0:
            clock += {EVALUATION_S}
            line["val_acc"] = step / 100
        line["t"] = clock
        metrics.write(json.dumps(line) + "\\n")
        time.sleep(0.001)
"""


def test_a_line_that_holds_a_step_and_its_evaluation_is_an_evaluation(
    agent: NodeAgent, tmp_path: Path
) -> None:
    metrics = MetricsSource(jsonl=METRICS_FILE, evaluation=('"val_acc"',))
    spec = command_spec(
        tmp_path,
        JSON_LINES,
        metrics=metrics,
        kind=TrialKind.CONVERGENCE,
        target="val_acc >= 0.55",
        max_samples=4000,
    )
    found = agent.run(spec, 0, None)
    assert found.outcome is Outcome.COMPLETED, found
    assert found.measurements["step_time_s"] == pytest.approx(STEP_S)
    # The line itself says after how many steps it measured.
    assert found.measurements["steps_to_target"] == 60
    rows = read_lines(spec.files.stream)
    evaluated = {each["step"] for each in rows if each["event"] == "evaluation"}
    assert evaluated == {20, 40, 60}


def test_evaluations_in_every_interval_are_no_measurement_and_the_reason_says_so(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = LANGUAGE_MODEL.replace("% 25", "% 1").replace("2000", "60")
    result = agent.run(command_spec(tmp_path, program, metrics=NAMED), 0, None)
    assert result.outcome is Outcome.FAILED
    assert "nor do 59 intervals that hold an evaluation" in result.reason
    only = MetricsSource(regex=STEPS, evaluation=("loss",))
    silent = agent.run(command_spec(tmp_path / "2", program, metrics=only), 0, None)
    assert silent.reason.startswith("The program reported no step: ")
    assert "without being one of an evaluation (metrics.evaluation 'loss')" in (
        silent.reason
    )


def test_silence_during_an_evaluation_that_is_named_is_no_stall(tmp_path: Path) -> None:
    floors = [
        Limits.of(command_spec(tmp_path, metrics=metrics)).stall_floor_s
        for metrics in (UNNAMED, NAMED)
    ]
    assert floors == [60.0, 300.0]


def test_a_program_without_named_evaluations_keeps_its_hash(tmp_path: Path) -> None:
    plain, named = (
        command_spec(tmp_path, metrics=metrics).program for metrics in (UNNAMED, NAMED)
    )
    assert isinstance(named, CommandProgram)
    assert program_hash(plain) != program_hash(named)
    assert "evaluation" not in program_to_json(plain)["metrics"]
    for program in (plain, named):
        assert program_from_json(program_to_json(program)) == program


# A bar whose last update stays on the screen: nothing completes its line.
BAR = """
import time
from tqdm import tqdm
bar = tqdm(total=40, desc="train", mininterval=0, miniters=1)
for step in range(1, 41):
    time.sleep(0.005)
    bar.set_postfix(acc=step / 40, refresh=False)
    bar.update(1)
    if step == LAST:
        time.sleep(600)
"""
TRAIN_BAR = MetricsSource(
    regex=(r"train: .* (?P<step>\d+)/40 \[", r"acc=(?P<acc>[\d.]+)")
)


def ended_at(agent: NodeAgent, directory: Path, last: int) -> AttemptResult:
    spec = command_spec(
        directory,
        BAR.replace("LAST", str(last)),
        metrics=TRAIN_BAR,
        kind=TrialKind.CONVERGENCE,
        target=f"acc >= {last / 40}",
        max_samples=40 * GLOBAL_BATCH,
        timeout_s=50.0,
    )
    return agent.run(spec, 0, None)


@pytest.mark.parametrize("last", [3, 40])
def test_a_progress_bar_is_read_at_the_time_it_is_printed(
    agent: NodeAgent, tmp_path: Path, last: int
) -> None:
    result = ended_at(agent, tmp_path, last)
    # Read with the next update, the target would never be seen.
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["steps_to_target"] == last


@pytest.mark.slow
def test_the_bar_of_an_evaluation_reports_no_steps(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = """
        import time
        from tqdm import tqdm
        for step in tqdm(range(1, 81), desc="train", mininterval=0, miniters=1):
            time.sleep(0.004)
            if step % 20 == 0:
                for batch in tqdm(range(10), desc="eval", mininterval=0, miniters=1):
                    time.sleep(0.03)
    """
    metrics = MetricsSource(
        regex=(r": .* (?P<step>\d+)/\d+ \[",),
        evaluation=("eval:",),
    )
    spec = command_spec(tmp_path, program, metrics=metrics, steps=70, warmup_steps=0)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["num_samples"] <= 80 * GLOBAL_BATCH
    # Two or three evaluations of 0.3 s, each less what its step took.
    assert result.measurements["evaluation_s"] > 0.3
