"""Training scripts as people write them, and whole sweeps of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_specs import (
    JSONL,
    MEET,
    TICKER,
    command_spec,
    rendezvous_of,
    write_program,
)
from sentences import refused
from waiting import DEADLINE_S
from watching import is_running

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.launch.verdict import merge
from scalelab.plan.expand import plan
from scalelab.records.streams import read_lines
from scalelab.session import sweep
from scalelab.site.choice import site_of

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SCRIPTS = EXPERIMENTS / "your_script"
ARGUMENTS = (
    "--batch-size {local_batch_size} --accumulate {gradient_accumulation_steps} "
    "--lr {learning_rate} --seed {seed} --out {trial_dir}"
)
# The machine may be busy with others: only gross differences are differences.
NOISE = 3.0


def script_spec(directory: Path, name: str, **changes: Any) -> Any:
    """Return an attempt of a script, read as its experiment says."""
    by_regex = (
        Experiment.from_file(EXPERIMENTS / "your_script.yaml").programs()[None].metrics
    )
    asked = {
        "command": f"python {name} {ARGUMENTS}",
        "code": SCRIPTS,
        "metrics": by_regex if name == "train.py" else JSONL,
        "global_batch_size": 64,
        "warmup_steps": 20,
        "steps": 100,
        "timeout_s": 300.0,
        **changes,
    }
    return command_spec(directory, **asked)


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_ways_to_report_measure_the_same(agent: Any, tmp_path: Path) -> None:
    for repeat in range(3):
        measured = []
        for name in ("train.py", "train_with_metrics.py"):
            spec = script_spec(tmp_path / f"{repeat}-{name}", name, ranks=2)
            result = agent.run(spec, 0, None)
            assert result.outcome is Outcome.COMPLETED, result
            measured.append(result.measurements["throughput_samples_per_s"])
            # Two ranks, 32 samples each, whatever the script reports them by.
            rows = read_lines(spec.files.stream)
            assert all(row["samples"] == 64 * row["step"] for row in rows)
            assert result.measurements["num_samples"] == 64 * rows[-1]["step"]
            assert result.measurements["num_steps"] >= 100
            assert not (SCRIPTS / "model.pt").exists()
        by_regex, by_lines = measured
        # A neighbour that slows one of them down does not do so three times.
        if 1 / NOISE < by_regex / by_lines < NOISE:
            return
    pytest.fail(f"{by_regex} samples per s by regex, {by_lines} by lines")


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_accumulating_script_keeps_to_the_batch_arithmetic(
    agent: Any, tmp_path: Path
) -> None:
    spec = script_spec(
        tmp_path / "1", "train_with_metrics.py", ranks=2, accumulation=4, steps=20
    )
    assert agent.run(spec, 0, None).outcome is Outcome.COMPLETED
    command = f"python train_with_metrics.py {ARGUMENTS}".replace(
        "{gradient_accumulation_steps}", "2"
    )
    spec = script_spec(
        tmp_path / "2",
        "train_with_metrics.py",
        ranks=2,
        accumulation=4,
        command=command,
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.REFUSED
    assert result.reason.startswith(
        "the program's data loader handed out 16 samples for each optimiser step (2 x "
        "8), where 32 were asked: local_batch_size=8 x gradient_accumulation_steps=4. "
        "It makes 2 passes a step: "
    )


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_script_on_two_nodes(agent: Any, start: Any, tmp_path: Path) -> None:
    spec = script_spec(tmp_path, "train_with_metrics.py", ranks=(1, 1), steps=50)
    with NodeAgent("node-1", "cpu", ()) as other:
        meeting = rendezvous_of(agent, other, spec.attempt_id)
        words = [start(spec, 0, meeting), start(spec, 1, meeting, on=other)]
        first = words[0].result(300)
        other.cancel(spec.attempt_id, "node 0 has measured")
        results = [first, words[1].result(DEADLINE_S)]
        agent.close_rendezvous(spec.attempt_id)
    assert merge(results, first_decides=True).outcome is Outcome.COMPLETED, results


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchrun_inside_a_command_leaves_nothing(agent: Any, tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_program(
        code,
        MEET
        + """
out = Path(os.environ["SCALELAB_TRIAL_DIR"])
(out / f"{os.environ['RANK']}.new").write_text(str(os.getpid()))
(out / f"{os.environ['RANK']}.new").rename(out / f"{os.environ['RANK']}.pid")
if os.environ["RANK"] != "0":
    held = meet()
    time.sleep(600)
while not (out / "1.pid").exists():
    time.sleep(0.01)
"""
        + TICKER,
    )
    spec = command_spec(
        tmp_path,
        code=code,
        ranks=2,
        launcher="none",
        command="torchrun --nproc-per-node {world_size} program.py",
        timeout_s=200.0,
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    out = Path(spec.directory) / "output"
    for rank in range(2):
        assert not is_running(int((out / f"{rank}.pid").read_text()))


def experiment(directory: Path, program: str, **changes: str) -> Path:
    write_program(directory / "my code", program)
    lines = {
        "name": "own",
        "command": "python program.py",
        "code": "{root: my code, snapshot: program.py}",
        "measure": "{warmup_steps: 2, steps: 20, repeats: 1}",
        "gpus": "1",
        "local_batch_size": "8",
        "site": "{device_type: cpu, nodes: 1, gpus_per_node: 1}",
        **changes,
    }
    file = directory / "own.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return file


@pytest.mark.repetition
@pytest.mark.slow
def test_sweep_of_a_command_on_two_nodes(tmp_path: Path) -> None:
    file = experiment(
        tmp_path,
        TICKER.replace("* 8", '* int(os.environ["SCALELAB_GLOBAL_BATCH_SIZE"])'),
        gpus="[1, 2]",
        site="{device_type: cpu, nodes: 2, gpus_per_node: 1}",
    )
    run = sweep(file, directory=tmp_path / "run")
    rows = run.observations
    assert set(rows["outcome"]) == {"completed"}, rows["reason"].tolist()
    assert set(rows["num_nodes"]) == {1, 2}
    assert rows["device_name"].notna().all()
    assert rows["throughput_samples_per_s"].gt(0).all()
    assert {kind for kind in rows["kind"]} == {TrialKind.THROUGHPUT}


@pytest.mark.slow
def test_sweep_ends_at_the_first_wrong_count_of_samples(tmp_path: Path) -> None:
    file = experiment(tmp_path, TICKER.replace("step * 8", "step * 3"))
    with refused("first_trial_failed", "3 samples", "global_batch_size=8"):
        sweep(file, directory=tmp_path / "run")


def test_launcher_none_on_several_nodes_is_refused_before_it_runs(
    tmp_path: Path,
) -> None:
    file = experiment(tmp_path, TICKER, launcher="none", gpus="[1, 2]")
    asked = Experiment.from_file(file)
    one_device_each = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 1})
    message = (
        r"^launcher=none starts one process per trial, but the trial on 2 devices has "
        r"2 nodes\. Use launcher: torchrun, per_node or another that spans nodes, or "
        r"keep every trial on one node\.$"
    )
    with pytest.raises(SpecError, match=message):
        plan(asked, one_device_each)
    assert plan(
        asked, site_of({"device_type": "cpu", "nodes": 1, "gpus_per_node": 2})
    ).trials


def test_experiments_of_your_script_are_short_and_valid() -> None:
    for name in ("your_script", "your_script_jsonl"):
        file = EXPERIMENTS / f"{name}.yaml"
        assert len(file.read_text().splitlines()) <= 40
        asked = Experiment.from_file(file)
        assert asked.gpus == (1, 2)
        assert all((asked.code_root / each).is_file() for each in asked.snapshot_paths)
