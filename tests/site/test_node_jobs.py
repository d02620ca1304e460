from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.site.choice import site_of
from scalelab.site.job_script import node_job_script, node_script
from scalelab.site.profile import Site

NUMBERS = [1, 2, 9, 10, 16]
COMMON = {
    "device_type": "cuda",
    "gpus_per_node": 4,
    "cores_per_node": 32,
    "walltime": "4h",
    "python": "/opt/env/bin/python",
    "prologue": ["module load cuda"],
}
SLURM = {"scheduler": "slurm", "partition": "gpu", **COMMON}
PBS = {"scheduler": "pbs", "queue": "gpu", **COMMON}
DIRECTORY = Path("/shared/runs/vit/cluster")


def site(settings: dict[str, object], **more: object) -> Site:
    return site_of({**settings, **more})


def script(settings: dict[str, object], num_nodes: int, **more: object) -> list[str]:
    text = node_job_script(
        site(settings, **more), num_nodes, job_name="vit-1", directory=DIRECTORY
    )
    assert text.endswith("\n")
    return text.splitlines()


@pytest.mark.parametrize("num_nodes", NUMBERS)
def test_slurm(num_nodes: int) -> None:
    start = (
        "exec /opt/env/bin/python -m scalelab.cluster.node_process "
        f"{DIRECTORY}/nodes.json vit-1"
        if num_nodes == 1
        else f"exec srun --nodes={num_nodes} --ntasks={num_nodes} --ntasks-per-node=1 "
        f"--kill-on-bad-exit=1 --cpus-per-task=32 bash {DIRECTORY}/node.sh vit-1"
    )
    assert script(SLURM, num_nodes) == [
        "#!/usr/bin/env bash",
        "#SBATCH --job-name=vit-1",
        "#SBATCH --partition=gpu",
        f"#SBATCH --nodes={num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=04:00:00",
        "#SBATCH --no-requeue",
        f"#SBATCH --output={DIRECTORY}/vit-1.log",
        "module load cuda",
        start,
    ]


@pytest.mark.parametrize("num_nodes", NUMBERS)
def test_pbs(num_nodes: int) -> None:
    start = (
        "exec /opt/env/bin/python -m scalelab.cluster.node_process "
        f"{DIRECTORY}/nodes.json vit-1"
        if num_nodes == 1
        else f"exec pbsdsh -- /bin/bash {DIRECTORY}/node.sh vit-1"
    )
    assert script(PBS, num_nodes) == [
        "#!/usr/bin/env bash",
        "#PBS -N vit-1",
        "#PBS -q gpu",
        f"#PBS -l select={num_nodes}:ncpus=32:ngpus=4",
        "#PBS -l place=scatter",
        "#PBS -l walltime=04:00:00",
        "#PBS -r n",
        "#PBS -j oe",
        f"#PBS -o {DIRECTORY}/vit-1.log",
        "module load cuda",
        start,
    ]


def test_each_node_of_a_larger_job_has_the_prologue() -> None:
    # pbsdsh starts tasks without what the job's own script has set up
    assert node_script(site(PBS), DIRECTORY).splitlines() == [
        "#!/usr/bin/env bash",
        "module load cuda",
        "exec /opt/env/bin/python -m scalelab.cluster.node_process "
        f'{DIRECTORY}/nodes.json "$1"',
    ]


def test_cores_are_left_to_the_job_where_the_site_does_not_say_how_many() -> None:
    plain = site_of({"scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 4})
    text = node_job_script(plain, 2, job_name="vit-1", directory=DIRECTORY)
    assert "cpus-per-task" not in text


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({**SLURM, "gpu_request": "gres"}, "#SBATCH --gres=gpu:4"),
        (SLURM, "#SBATCH --gpus-per-node=4"),
        (PBS, "#PBS -l select=1:ncpus=32:ngpus=4"),
        ({**PBS, "gpu_request": "torque"}, "#PBS -l nodes=1:ppn=32:gpus=4"),
    ],
)
def test_ranks_on_cores_may_hold_the_places_of_gpus(
    settings: dict[str, object], line: str
) -> None:
    assert line in script(settings, 1, device_type="cpu", request_gpus=True)
    assert line not in script(settings, 1, device_type="cpu")


def test_a_site_without_a_batch_system_has_no_jobs() -> None:
    with refused("site_without_job_script"):
        node_job_script(
            site_of({"device_type": "cpu"}), 1, job_name="vit-1", directory=DIRECTORY
        )


@pytest.mark.parametrize(
    ("settings", "directory"), [(PBS, "/shared/my runs"), (SLURM, "/shared/50%")]
)
def test_a_directory_that_no_log_can_lie_in_is_refused(
    settings: dict[str, object], directory: str
) -> None:
    with pytest.raises(SpecError, match=f"'{directory}' holds .* path of a log"):
        node_job_script(site(settings), 1, job_name="vit-1", directory=Path(directory))
