import shlex
from pathlib import Path

import pytest
from measured_runs import COMMAND, EMULATED, measured_run

from scalelab.errors import SpecError
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.session import Run, load

SITES = {
    "slurm": "scheduler: slurm\ndevice_type: cuda\ngpus_per_node: 4\nwalltime: 1d\n",
    "pbs": "scheduler: pbs\ndevice_type: cuda\ngpus_per_node: 4\nqueue: gpu\n"
    "prologue: [module load cuda]\n",
    "local": "scheduler: local\ndevice_type: cpu\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "train.py").write_text("")
    for name, text in SITES.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return load(measured_run(folder / "run", COMMAND).directory)


@pytest.fixture(scope="module")
def one_node(run: Run) -> Recommendation:
    answer = run.recommend(max_time="30d")  # the cheapest holds it
    assert answer.chosen.num_nodes == 1
    return answer


@pytest.fixture(scope="module")
def four_nodes(run: Run) -> Recommendation:
    answer = run.recommend(gpus=[16], max_time="30min")
    assert (answer.chosen.world_size, answer.chosen.num_nodes) == (16, 4)
    return answer


def script(run: Run, folder: Path, site: str, answer: Recommendation) -> list[str]:
    return run.job_script(answer, str(folder / f"{site}.yaml")).splitlines()


def test_slurm_one_node(run: Run, folder: Path, one_node: Recommendation) -> None:
    lines, row = script(run, folder, "slurm", one_node), one_node.chosen
    assert lines[:2] == ["#!/usr/bin/env bash", "#SBATCH --job-name=run"]
    assert "#SBATCH --nodes=1" in lines
    assert f"#SBATCH --gpus-per-node={row.world_size}" in lines
    assert any(line.startswith("#SBATCH --time=") for line in lines)
    words = shlex.split(lines[-1])
    assert words[:3] == [
        "torchrun",
        "--standalone",
        f"--nproc-per-node={row.world_size}",
    ]
    assert words[3:] == [
        *("train.py", "--batch", str(row.batch.local_batch_size)),
        *("--accumulate", str(row.batch.gradient_accumulation_steps)),
        *("--lr", f"{0.1 * row.batch.global_batch_size / 32:g}"),
        *("--seed", "3", "--out", "."),
    ]


def test_slurm_many_nodes(run: Run, folder: Path, four_nodes: Recommendation) -> None:
    lines = script(run, folder, "slurm", four_nodes)
    assert "#SBATCH --nodes=4" in lines
    assert "#SBATCH --ntasks-per-node=1" in lines
    assert "#SBATCH --gpus-per-node=4" in lines
    command = lines[-1]
    assert command.startswith("srun torchrun --nnodes=4 --rdzv-backend=c10d ")
    assert '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' in command
    assert ':29500" --nproc-per-node=4 train.py --batch' in command


def test_pbs(
    run: Run, folder: Path, one_node: Recommendation, four_nodes: Recommendation
) -> None:
    lines, count = script(run, folder, "pbs", one_node), one_node.chosen.world_size
    assert lines[1:3] == ["#PBS -N run", "#PBS -q gpu"]
    assert f"#PBS -l select=1:ncpus={count}:ngpus={count}" in lines
    assert lines[-2] == "module load cuda"
    assert lines[-1].startswith("torchrun --standalone")
    lines = script(run, folder, "pbs", four_nodes)
    assert "#PBS -l select=4:ncpus=4:ngpus=4" in lines
    assert lines[-1].startswith("# On each node: torchrun --nnodes=4 --node-rank=")


def test_uneven_nodes_have_no_launch_line(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "train.py").write_text("")
    text = COMMAND.replace("[1, 2, 4, 8, 16]", "[7]")
    uneven = load(measured_run(tmp_path / "run", text).directory)
    with pytest.raises(SpecError, match=r"7 ranks on 2 nodes are uneven \(2x4\+3\)"):
        script(uneven, folder, "slurm", uneven.recommend())


def test_sites_without_a_batch_system_have_no_job_script(
    run: Run, folder: Path, one_node: Recommendation
) -> None:
    with pytest.raises(SpecError, match=r"'local' has scheduler=local, which has no"):
        script(run, folder, "local", one_node)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "gpus: [1, 2, 4, 8, 16]",
            "launcher: none\ngpus: [1, 2, 4]",
            "python train.py --batch",
        ),
        ("python train.py", "./train", "torchrun --standalone --nproc-per-node=1 "),
    ],
)
def test_other_ways_to_start(
    folder: Path, tmp_path: Path, old: str, new: str, line: str
) -> None:
    (tmp_path / "train.py").write_text("")
    other = load(measured_run(tmp_path / "run", COMMAND.replace(old, new)).directory)
    lines = script(other, folder, "slurm", other.recommend(max_time="30d"))
    assert lines[-1].startswith(line)
    assert ("--no-python ./train --batch" in lines[-1]) == (new == "./train")


def test_a_workload_has_no_command_to_start(folder: Path, tmp_path: Path) -> None:
    own = load(measured_run(tmp_path / "run", EMULATED).directory)
    lines = script(own, folder, "slurm", own.recommend())
    assert lines[-1].startswith("# Start your training here: ")
    assert "ranks, local batch" in lines[-1]
