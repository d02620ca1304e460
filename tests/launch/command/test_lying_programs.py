"""Real programs that print something else than they do, and some that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_specs import command_spec

from scalelab.experiment.presets import PRESETS
from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptResult

pytestmark = pytest.mark.slow
CLOCK = r" at (?P<t>\S+) s "
STEP = MetricsSource(regex=(r"step (?P<step>\d+)", CLOCK))
# The clock of the program is declared: a pass takes a hundredth of a second on it, and
# what the lines say of steps is the test's.
PROGRAM = """
import time
LOCAL, PASSES = {local}, {passes}
step = samples = micro = 0
def say(line):
    print(line, f" at {{micro * 0.01:.3f}} s ", flush=True)
while True:
    for each in range(PASSES):
        time.sleep(0.001)
        samples, micro = samples + LOCAL, micro + 1
        {of_pass}
    step += 1
    {of_step}
"""


def run(
    agent: NodeAgent,
    directory: Path,
    *,
    of_pass: str = "",
    of_step: str = "",
    passes: int = 1,
    metrics: MetricsSource = STEP,
) -> AttemptResult:
    program = PROGRAM.format(
        local=16 // passes, passes=passes, of_pass=of_pass, of_step=of_step
    )
    spec = command_spec(
        directory,
        program,
        global_batch_size=16,
        accumulation=passes,
        metrics=metrics,
        launcher="none",
    )
    return agent.run(spec, 0, None)


@pytest.mark.parametrize(
    ("pass_s", "bound", "least_s", "most_s"),
    [
        ("0.02 + 0.2 * 0.9**micro", None, 0.02, 0.022),
        ("0.02 + 0.2 * 0.985**micro", "at_most", 0.028, 0.035),
        ("0.02 + 0.001 * micro", "at_least", 0.17, 0.21),
    ],
)
def test_a_trial_goes_on_until_its_steps_have_settled(
    agent: NodeAgent,
    tmp_path: Path,
    pass_s: str,
    bound: str | None,
    least_s: float,
    most_s: float,
) -> None:
    clock = f"0.01 * micro + sum({pass_s.replace('micro', 'm')} for m in range(micro))"
    line = f"print(f'step {{step}} at {{{clock}:.4f}} s ', flush=True)"
    result = run(agent, tmp_path, of_step=line)
    assert result.outcome is Outcome.COMPLETED, result
    measured = result.measurements
    assert measured["settled"] is (bound is None)
    assert measured.get("step_time_bound") == bound
    # Each line has the clock twice; the later one counts a hundredth more a pass.
    assert least_s <= measured["step_time_s"] - 0.01 <= most_s


def test_samples_printed_as_steps_are_marked(agent: NodeAgent, tmp_path: Path) -> None:
    line = "say(f'Train Epoch: 0 step {samples}/6400 Batch (t): 0.0100, 1600.0/s')"
    result = run(agent, tmp_path, of_step=line)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["validity"] == ["rate_disagrees"]


def test_the_same_line_read_as_samples_agrees_with_its_own_rate(
    agent: NodeAgent, tmp_path: Path
) -> None:
    line = "say(f'Train Epoch: 0 [{samples:>4}/6400 ({samples // 64}%)] '"
    line += "'Batch (t): 0.0100, 1600.0/s Loss: 1')"
    source = MetricsSource(regex=(*PRESETS["open_clip"].regex, CLOCK))
    result = run(agent, tmp_path, of_step=line, metrics=source)
    assert result.outcome is Outcome.COMPLETED, result
    measured = result.measurements
    assert "validity" not in measured
    assert measured["reported_step_time_s"] == pytest.approx(measured["step_time_s"])


def test_passes_printed_as_steps_are_marked(agent: NodeAgent, tmp_path: Path) -> None:
    line = "say(f'step {micro} 400.0 samples/s')"
    result = run(agent, tmp_path, of_pass=line, passes=4)
    assert result.outcome is Outcome.COMPLETED, result
    measured = result.measurements
    assert measured["validity"] == ["rate_disagrees"]
    factor = measured["reported_step_time_s"] / measured["step_time_s"]
    assert factor == pytest.approx(4)


def test_a_truthful_program_with_accumulation_is_not_marked(
    agent: NodeAgent, tmp_path: Path
) -> None:
    line = "say(f'step {step} 400.0 samples/s')"
    result = run(agent, tmp_path, of_step=line, passes=4)
    assert result.outcome is Outcome.COMPLETED, result
    measured = result.measurements
    assert "validity" not in measured
    assert measured["reported_step_time_s"] == pytest.approx(measured["step_time_s"])


def test_samples_that_rise_unevenly_are_marked_by_the_rate(
    agent: NodeAgent, tmp_path: Path
) -> None:
    line = "say(f'step {samples + step % 2} took 10.00 ms/step')"
    result = run(agent, tmp_path, of_step=line)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["validity"] == ["rate_disagrees"]
