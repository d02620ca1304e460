"""Drivers apart from the user's shell, on a real SLURM."""

import re

import pytest
from slurm_sweeps import EMULATED, Swept, one_second_trials
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(400)]

# Trials of 2 and 5 s, one of two devices each.
FEW = one_second_trials(3, 8, 16)
FEW["measure"]["steps"] = 75
# Steps once a second job has been asked for, and not before.
PATIENT = """\
import os, pathlib, time
log, step = pathlib.Path(os.environ["DRIVER_LOG"]), 0
with open(os.environ["SCALELAB_METRICS"], "a", buffering=1) as metrics:
    while True:
        time.sleep(0.02)
        if "renewed-driver-2" in log.read_text():
            step += 1
            metrics.write(f'{{"step": {step}, "samples": {8 * step}}}\\n')
"""


def detach(swept: Swept) -> tuple[int, str]:
    return swept.slurm.scalelab("sweep", "--detach", *swept.arguments)


def test_a_detached_process_is_stopped_and_succeeded(slurm: ThrowawaySlurm) -> None:
    swept = Swept(slurm, "detached", FEW, nodes=1)
    code, said = detach(swept)
    assert code == 0, said
    assert re.search(r"^Begun: process \d+ on host login runs the sweep of", said, re.M)
    wait_until(lambda: swept.num_ended(), "a trial ended")
    assert "Driver: process" in swept.status()
    code, said = swept.run()
    assert code == 2, said
    assert "`scalelab stop" in said
    code, said = slurm.scalelab("stop", "--now", f"runs/{swept.name}")
    assert code == 0, said
    assert said.startswith("Stopped: process ")
    swept.check_nothing_is_left()
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    swept.check_complete(6)


def test_a_drivers_job_renews_itself(slurm: ThrowawaySlurm) -> None:
    (slurm.home / "patient.py").write_text(PATIENT)
    trials = {
        "command": "python patient.py {local_batch_size}",
        "launcher": "none",
        "code": {"snapshot": ["patient.py"]},
        "env": {"DRIVER_LOG": str(slurm.home / "runs" / "renewed" / "driver.log")},
        "measure": {"long_trial": "none", "steps": 20, "repeats": 6, "canary_every": 0},
        "gpus": [1],
        "local_batch_size": [8],
    }
    job = {"walltime": "40s", "partition": "short", "memory": "500MB"}
    swept = Swept(slurm, "renewed", trials, nodes=1, driver_job=job)
    code, said = detach(swept)
    assert code == 0, said
    assert re.search(
        r"^Begun: job \d+ \(renewed-driver-1\) runs the sweep of", said, re.M
    )
    assert re.search(r"on host n\d", said)
    log_file = swept.directory / "driver.log"
    wait_until(
        lambda: not slurm.jobs(), "all jobs have ended", 300, said=log_file.read_text
    )
    log = log_file.read_text()
    assert "job's time is nearly up: job" in log, log
    assert "renewed-driver-2" in log
    swept.check_complete(6)


def test_a_drivers_job_that_waits_is_cancelled(slurm: ThrowawaySlurm) -> None:
    job = {"walltime": "5min", "directives": ["--begin=now+1hour"]}
    swept = Swept(slurm, "waiting", {**EMULATED, "gpus": [1]}, driver_job=job)
    code, said = detach(swept)
    assert code == 0, said
    assert re.search(r"Queued: job \d+ \(waiting-driver-1\) waits .*BeginTime", said)
    assert "(waiting-driver-1) waits in the queue, BeginTime" in swept.status()
    code, said = slurm.scalelab("stop", f"runs/{swept.name}")
    assert code == 0, said
    assert said.startswith("Cancelled: job ")
    swept.check_nothing_is_left()
    job = {"walltime": "5min", "partition": "nowhere"}
    swept = Swept(slurm, "waiting", {**EMULATED, "gpus": [1]}, driver_job=job)
    code, said = detach(swept)
    assert code == 3, said
    assert "invalid partition specified: nowhere" in said
