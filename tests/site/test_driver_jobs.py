import doctest
from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.site import job_script as driver_jobs
from scalelab.site.choice import site_of
from scalelab.site.job_script import driver_job_script

GPU_NODES = {
    "name": "hpc",
    "device_type": "cuda",
    "gpus_per_node": 4,
    "python": "/opt/env/bin/python",
    "prologue": ["module load python"],
}
FILES = {
    "directory": Path("/home/my self"),
    "log": Path("/data/driver.log"),
    "job_log": Path("/data/cluster/vit-driver-2.log"),
}


def test_examples() -> None:
    assert doctest.testmod(driver_jobs).failed == 0


def test_a_successor_on_pbs_asks_for_no_gpu_and_waits_its_turn() -> None:
    site = site_of(
        {
            **GPU_NODES,
            "scheduler": "pbs",
            "queue": "gpu",
            "exclusive": True,
            "directives": ["-P proj"],
            "driver_job": {
                "walltime": "12h",
                "queue": "small",
                "cores": 2,
                "memory": "1GB",
                "directives": ["-m n"],
            },
        }
    )
    script = driver_job_script(
        site, ["sweep", "a b.yaml"], job_name="vit-driver-2", after="17.pbs", **FILES
    )
    assert script.splitlines() == [
        "#!/usr/bin/env bash",
        "#PBS -N vit-driver-2",
        "#PBS -q small",
        "#PBS -l select=1:ncpus=2:mem=954mb",
        "#PBS -l place=scatter",
        "#PBS -l walltime=12:00:00",
        "#PBS -r n",
        "#PBS -m n",
        "#PBS -W depend=afterany:17.pbs",
        "#PBS -j oe",
        "#PBS -o /data/cluster/vit-driver-2.log",
        "module load python",
        "cd '/home/my self'",
        "exec /opt/env/bin/python -m scalelab sweep 'a b.yaml' >>/data/driver.log 2>&1",
    ]


def test_nothing_of_the_nodes_memory_and_constraints_is_asked_for() -> None:
    site = site_of(
        {
            **GPU_NODES,
            "scheduler": "slurm",
            "constraint": "a100",
            "memory_per_gpu": "64GB",
            "gpu_type": "a100",
            "driver_job": {"walltime": "1h"},
        }
    )
    script = driver_job_script(site, ["sweep"], job_name="d", after="9", **FILES)
    assert "gpu" not in script
    assert "a100" not in script
    assert "#SBATCH --dependency=afterany:9\n" in script


def test_a_site_without_a_drivers_job_is_refused() -> None:
    site = site_of({**GPU_NODES, "scheduler": "slurm"})
    with refused("no_driver_job", "driver_job"):
        driver_job_script(site, ["sweep"], job_name="d", **FILES)


@pytest.mark.parametrize(
    ("scheduler", "job", "words"),
    [
        ("allocation", {"walltime": "1h"}, "driver_job belongs to scheduler slurm or"),
        ("slurm", {}, "driver_job.*walltime"),
        ("slurm", {"walltime": "1h", "gpus": 1}, "driver_job.*gpus"),
    ],
)
def test_profiles_are_checked(scheduler: str, job: dict, words: str) -> None:
    values = {**GPU_NODES, "scheduler": scheduler, "driver_job": job}
    with pytest.raises(SpecError, match=words):
        site_of(values)
