"""A driver in a batch job of PBS, or of what stands in for it where there is none."""

import re

import pytest
from pbs_sweeps import SMALL, Pbs, Swept
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_a_drivers_job_sweeps_and_is_stopped(pbs: Pbs) -> None:
    if pbs.is_real and "flatuid = True" not in pbs.run("qstat", "-B", "-f"):
        pytest.skip("nodes of this PBS may not submit jobs")
    job = {"walltime": "10min", "memory": "500MB"}
    measure = {**SMALL["measure"], "steps": 50, "repeats": 90}
    experiment = {**SMALL, "gpus": [1], "measure": measure}
    swept = Swept(pbs, "driven", experiment, nodes=1, driver_job=job)
    code, said = pbs.scalelab("sweep", "--detach", *swept.arguments)
    assert code == 0, said
    assert re.search(r"^(Begun|Queued): job \S+ \(driven-driver-1\)", said, re.M), said
    wait_until(swept.num_ended, "a trial ends", said=swept.job_logs)
    code, said = swept.run(60)
    assert code == 2, said
    assert "is being run by process" in said
    code, said = pbs.scalelab("stop", "--now", "runs/driven")
    assert code == 0, said
    assert said.startswith("Stopped: process ")
    swept.check_nothing_is_left()
    log = (swept.directory / "driver.log").read_text()
    assert "The same command goes on with them." in log
