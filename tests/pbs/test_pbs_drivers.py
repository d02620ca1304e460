"""A driver in a batch job of PBS, or of what stands in for it where there is none."""

import re

import pytest
from pbs_sweeps import Pbs
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_a_drivers_job_sweeps_and_is_stopped(pbs: Pbs) -> None:
    if pbs.is_real and "flatuid = True" not in pbs.run("qstat", "-B", "-f"):
        pytest.skip("nodes of this PBS may not submit jobs")
    job = {"walltime": "10min", "memory": "500MB"}
    settings = {"kind": "throughput", "warmup_steps": 1, "steps": 50, "repeats": 20}
    words = pbs.write(
        "driven", {"gpus": [1], "measure": settings}, nodes=1, driver_job=job
    )
    process = pbs.start("sweep", "--detach", *words)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert re.match(r"(Begun|Queued): job \S+ \(driven-driver-1\)", said), said
    wait_until(lambda: pbs.num_ended("driven"), "a trial ends")
    second = pbs.start("sweep", *words)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 2, said
    assert "is being run by process" in said
    stop = pbs.start("stop", "--now", "runs/driven")
    said, _ = stop.communicate(timeout=150)
    assert stop.returncode == 0, said
    assert said.startswith("Stopped: process ")
    wait_until(lambda: not pbs.known(), "no job is left")
    log = (pbs.home / "runs" / "driven" / "driver.log").read_text()
    assert "The same command goes on with them." in log
