"""Long trials of commands, whose programs tell the time of their steps themselves."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_specs import command_spec

from scalelab.experiment.trial import LONG
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.observations import row

BATCH = 8


def run_long(
    agent: NodeAgent, directory: Path, step_time_s: str, **measurement: Any
) -> Any:
    """Run a program whose steps take so long by its own clock; return its row."""
    text = f"""
        import json, os, time
        clock = 0.0
        with open(os.environ["SCALELAB_METRICS"], "a") as file:
            for step in range(1, 100_000):
                clock += {step_time_s}
                print(json.dumps(dict(step=step, t=clock)), file=file, flush=True)
                time.sleep(0.004)
    """
    spec = command_spec(directory, text, launcher="none")
    wanted = replace(spec.trial.measurement, **measurement)
    spec = replace(spec, trial=replace(spec.trial, repeat=LONG, measurement=wanted))
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    return row(spec, result)


def test_it_goes_on_for_its_time_and_is_marked(
    agent: NodeAgent, tmp_path: Path
) -> None:
    began_s = time.monotonic()
    found = run_long(agent, tmp_path, "0.04", least_s=3.0)
    assert time.monotonic() - began_s >= 2.0
    assert found["num_steps"] > 20
    assert found["validity"] == ["long_trial"]
    assert found["later_differs"] is None
    assert found["later_step_time_s"] == pytest.approx(0.04)
    assert found["window_step_time_s"] == pytest.approx(0.04)


def test_a_core_that_slows_down_is_not_explained_until_its_time_is_up(
    agent: NodeAgent, tmp_path: Path
) -> None:
    slower = "0.01 if step < 70 else 0.04"
    found = run_long(agent, tmp_path, slower, least_s=2.0, timeout_s=12.0)
    assert found["later_differs"] == "unexplained"
    assert found["window_step_time_s"] == pytest.approx(0.01)
    assert found["later_step_time_s"] > 0.02


def test_it_waits_for_the_second_of_pauses(agent: NodeAgent, tmp_path: Path) -> None:
    paused = "0.04 + 20 * (step % 100 == 0)"
    found = run_long(agent, tmp_path, paused, least_s=3.0)
    assert found["later_differs"] == "pauses"
    assert found["evaluation_interval_samples"] == 100 * BATCH
    per_sample_s = found["evaluation_s"] / found["num_samples"]
    assert per_sample_s == pytest.approx(20 / (100 * BATCH), rel=0.05)


def test_the_first_epoch_is_known_by_the_samples_of_the_job(
    agent: NodeAgent, tmp_path: Path
) -> None:
    decoding = "0.15 if step <= 60 else 0.02"
    found = run_long(
        agent, tmp_path, decoding, least_s=6.0, samples_per_epoch=60 * BATCH
    )
    assert found["later_differs"] == "first_epoch"
    assert found["first_epoch_s"] == pytest.approx(0.13 * 60)


def test_a_program_that_ends_by_itself_tells_what_it_has_shown(
    agent: NodeAgent, tmp_path: Path
) -> None:
    ending = "0.04 if step < 40 else exit()"
    found = run_long(agent, tmp_path, ending, least_s=60.0)
    assert found["num_steps"] >= 20
    assert found["later_differs"] is None
