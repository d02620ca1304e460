"""What the record of a driver's job spares the queue, on a real SLURM."""

import json
import sys
from pathlib import Path

import pytest
from fake_programs import FakePrograms
from slurm_sweeps import Swept, one_second_trials
from throwaway_slurm import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(200)]

# Trials of 1 s on one of two devices: more than are left when it is stopped.
MANY = one_second_trials(100, 8)


def test_the_queue_is_not_asked_for_a_driver_that_has_begun(
    slurm: ThrowawaySlurm,
) -> None:
    job = {"walltime": "10min", "memory": "500MB"}
    swept = Swept(slurm, "recorded", MANY, nodes=1, driver_job=job)
    code, said = slurm.scalelab("sweep", "--detach", *swept.arguments)
    assert code == 0, said
    assert "\nBegun: job " in said, said
    record = json.loads((swept.directory / "cluster" / "driver.json").read_text())
    assert record["has_left_queue"] is True
    programs = FakePrograms(slurm.home / "silent")
    asked = [programs.does(name, "exit 1") for name in ("squeue", "scancel")]
    programs.folder.chmod(0o777)
    path = f"{programs.folder}:{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"

    def scalelab(*words: str) -> str:
        return slurm.run(["scalelab", *words, f"runs/{swept.name}"], env={"PATH": path})

    assert "Driver: process " in scalelab("status")
    assert scalelab("stop", "--now").startswith("Stopped: process ")
    assert "Driver: none; the sweep is not running" in scalelab("status")
    assert scalelab("stop").startswith("No driver runs ")
    assert not any(each.exists() for each in asked)
    assert swept.num_ended() < 100
    swept.check_nothing_is_left()
