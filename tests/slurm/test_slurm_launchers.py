"""Launchers whose ranks meet across two nodes of a real SLURM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import ranked_program
from promised import skip_or_fail
from slurm_sweeps import SITE, Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]
EXPERIMENT = {
    "metrics": {"regex": r"step (?P<step>\d+) loss (?P<loss>\S+)"},
    "measure": {
        "long_trial": "none",
        "kind": "throughput",
        "warmup_steps": 2,
        "steps": 20,
        "repeats": 1,
    },
    "uses": ["SCALELAB_TRIAL_DIR"],
    "nodes": 2,
    "gpus_per_node": 2,
    "local_batch_size": 8,
    "job": {"samples": 3000},
}


def swept(slurm: ThrowawaySlurm, launcher: str) -> Swept:
    """Sweep the program under a launcher, one trial on two nodes."""
    program = Path(ranked_program.__file__).read_text()
    (slurm.home / "ranked_program.py").write_text(program)
    command = f"python ranked_program.py {launcher} -"
    experiment = {**EXPERIMENT, "launcher": launcher, "command": command}
    swept = Swept(slurm, launcher.replace("_", "-"), experiment, SITE)
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    return swept


def check_ranks(folder: Path) -> None:
    known = [json.loads(each.read_text()) for each in folder.glob("rank-*.json")]
    assert [each["size"] for each in known] == [4] * 4
    assert len({each["host"] for each in known}) == 2


@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun",
        pytest.param("tf_config", marks=pytest.mark.repetition),
        pytest.param("srun", marks=pytest.mark.repetition),
        pytest.param("jax", marks=pytest.mark.repetition),
    ],
)
def test_ranks_meet_across_nodes(slurm: ThrowawaySlurm, launcher: str) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        skip_or_fail("mpirun of Open MPI is not installed (apt install openmpi-bin)")
    sweep = swept(slurm, launcher)
    (attempt,) = (slurm.home / "runs").glob(f"{sweep.name}/trials/*/001/output")
    check_ranks(attempt)
    sweep.check_nothing_is_left()


def test_the_job_of_the_answer_starts_its_command_once_per_node(
    slurm: ThrowawaySlurm,
) -> None:
    swept(slurm, "per_node")
    code, script = slurm.scalelab("recommend", "runs/per-node", "--sbatch")
    assert code == 0, script
    directory = slurm.home / "per-node-job"
    slurm.run(["mkdir", "-p", str(directory)])
    slurm.run(["cp", "ranked_program.py", str(directory)])
    # As it is, the program trains for minutes.
    (directory / "job.sh").write_text(script.replace(" per_node -", " per_node short"))
    job = slurm.run(["sbatch", "--parsable", "job.sh"], directory=directory).strip()
    wait_until(lambda: job not in slurm.jobs(), "the job has ended", within_s=120)
    logs = "".join(each.read_text() for each in directory.glob("slurm-*.out"))
    assert len(list(directory.glob("rank-*.json"))) == 4, script + logs
    check_ranks(directory)
    assert "step 20 " in logs
