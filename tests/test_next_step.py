"""The command that an answer names next, on the command line and in Python."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
from measured_runs import EMULATED, measured_run
from sentences import Golden

import scalelab
from scalelab.inputs.problems import for_the_command_line
from scalelab.plan.budget import ENDING_S, Budget
from scalelab.session import load
from scalelab.session.run import Run

TARGET = """\
name: small
workload: {name: digits_mlp, hidden_sizes: [64]}
measure: {long_trial: none, warmup_steps: 2, steps: 30, repeats: 2}
job: {epochs: 40, samples_per_epoch: 1437, target: val_acc >= 0.9}
gpus: [1, 2]
local_batch_size: [4, 8]
learning_rate: 0.1
site: {device_type: cpu, gpus_per_node: 2}
"""
SLURM = EMULATED.replace("gpus: [1, 2]", "gpus: [1, 2, 4]").replace(
    "site: {device_type: cpu, gpus_per_node: 2}",
    "site: {scheduler: slurm, device_type: cpu, gpus_per_node: 2}",
)
TABLE = "gpus,nodes,batch_per_gpu,images_per_s\n" + "".join(
    f"{n},{-(-n // 8)},32,{rate}\n"
    for n, rate in {1: 790, 2: 1560, 4: 3080, 8: 6050, 16: 1110, 32: 20600}.items()
)


def step(run: Run, **question: Any) -> Any:
    answer = run.recommend(**question)
    (fact,) = (fact for fact in answer.facts if fact.kind == "next_step")
    with for_the_command_line():
        return fact.values["step"], answer.next_command[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_samples_that_nobody_measured_are_trained_for(
    here: Path, golden: Golden
) -> None:
    measured_run(here / "runs" / "small", TARGET)
    name, command = step(load("runs/small"))
    assert name == "train"
    # what an older ScaleLab wrote does not say which file it read
    golden(command)
    assert command.endswith(",kind=convergence")


@pytest.mark.slow
def test_where_all_is_known_the_job_is_submitted(here: Path, golden: Golden) -> None:
    measured_run(here / "elsewhere", SLURM)
    run = load("elsewhere")
    name, command = step(run)
    golden(*(name, command))
    assert "#SBATCH" in run.job_script(run.recommend())
    golden(run.recommend().next_command[0])


@pytest.mark.slow
def test_in_python_it_is_a_call_with_arguments_that_there_are(here: Path) -> None:
    Path("table.csv").write_text(TABLE)
    table = scalelab.import_table("table.csv", "runs/table", constant={"seed": "0"})
    measured_run(here / "elsewhere", TARGET)
    job = {"samples": 10**7}
    for answer in (
        table.recommend(job=job),
        table.recommend(job=job, max_time="1s", confidence=0.8, price={"": "2usd"}),
        load("elsewhere").recommend(),
    ):
        call = ast.parse(answer.next_command[0], mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        owner = scalelab.Run if call.func.attr == "recommend" else scalelab
        known = inspect.signature(getattr(owner, call.func.attr)).parameters
        named = {keyword.arg for keyword in call.keywords}
        assert named <= {*known, "max_time"}
        assert named


def test_what_an_adaptive_sweep_is_to_measure_next_has_its_budget(
    here: Path, golden: Golden
) -> None:
    text = EMULATED.replace("gpus: [1, 2]", "gpus: 1")
    measured_run(here / "runs" / "small", f"{text}source: adaptive\n")
    name, command = step(load("runs/small"))
    assert name == "measure"
    head, _, budget = command.partition(" --sweep-budget ")
    golden(head)
    spent_gpu_s = load("runs/small").observations["allocated_gpu_s"].sum()
    assert Budget.parse(budget).amount > spent_gpu_s + 2 * ENDING_S
