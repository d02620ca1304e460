"""What is said of a command while no step comes: real programs."""

import re
import time
from pathlib import Path

import pytest
import yaml
from command_specs import command_spec
from probed_programs import PROGRAMS, probed

from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.command import watch
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec

pytestmark = pytest.mark.slow
LINES = """
    import time
    for step in range({count}):
        print(f"Train Epoch: 1 [{{step * 64}}/60000 ({{step}}%)]\\tLoss: 1.0")
    time.sleep({seconds})
"""


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LOOK_EVERY_S", 0.2)


def notice(spec: AttemptSpec) -> str:
    return spec.files.notice.read_text() if spec.files.notice.exists() else ""


@pytest.mark.parametrize(
    ("count", "patience_s", "is_said"),
    [(120, 60.0, True), (5, 0.5, True), (5, 60.0, False)],
)
def test_lines_that_might_be_of_steps_are_named_with_what_reads_them(
    agent: NodeAgent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    patience_s: float,
    is_said: bool,
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", patience_s)
    text = LINES.format(count=count, seconds=4)
    spec = command_spec(tmp_path, text, launcher="none")
    result = agent.run(spec, 0, None)
    # Nothing is ended by it.
    assert result.outcome is Outcome.FAILED
    said = notice(spec)
    assert bool(said) is is_said
    assert not said or said.startswith("No step after ")
    assert not said or "These lines are read by metrics: mnist" in said
    assert not said or "last lines of rank-0.log: " in said


def test_an_expression_is_named_as_yaml_that_can_be_copied(
    agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.5)
    text = (
        "import time\nfor n in range(1, 9):\n    print('at step', n, 'loss', 1 / n)\n"
    )
    spec = command_spec(tmp_path, f"{text}time.sleep(4)", launcher="none")
    agent.run(spec, 0, None)
    _, _, line = notice(spec).partition("These lines are read by ")
    expression = yaml.safe_load(line)["metrics"]["regex"]
    assert re.search(expression, "at step 12 loss 0.5")


def test_a_program_that_steps_is_left_alone(
    agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.0)
    metrics = MetricsSource(regex=(r"step (?P<step>\d+)",))
    text = "for step in range(1, 300):\n    print('step', step, flush=True)\n"
    text += "    import time; time.sleep(0.01)"
    spec = command_spec(tmp_path, text, launcher="none", metrics=metrics, steps=100)
    began_s = time.monotonic()
    assert agent.run(spec, 0, None).outcome is Outcome.COMPLETED
    assert time.monotonic() - began_s > 1.0
    assert not notice(spec)


def test_ranks_that_do_not_come_to_the_store_are_named(
    agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 4.0)
    program = PROGRAMS / "misleading" / "own_port.py"
    spec = probed(
        tmp_path, program, launcher="torchrun", ranks=2, start_up_timeout_s=15.0
    )
    result = agent.run(spec, 0, None)
    assert "None of 2 ranks is connected with the store" in notice(spec)
    assert result.outcome is Outcome.REFUSED, result
    assert "None of 2 ranks is connected with the store" in result.reason
    assert result.input_error == result.reason


def test_ranks_that_come_late_are_named_only_until_they_come(
    agent: NodeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 4.0)
    text = """
        import time
        import torch.distributed as dist
        time.sleep(8)
        dist.init_process_group("gloo")
        time.sleep(600)
    """
    spec = command_spec(tmp_path, text, ranks=2, start_up_timeout_s=30.0)
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.STALLED, result
    assert "is connected with the store" in notice(spec)
    assert "is connected with the store" not in result.reason
