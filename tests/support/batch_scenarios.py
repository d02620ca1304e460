"""What happens to jobs, nodes and drivers of a sweep, on whichever batch system.

Each scenario ends with the same: every trial measured once, no job and no process left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import psutil
from batch_sweeps import BatchSweep, BatchSystem, processes_of
from waiting import wait_until

from scalelab.records.control.job_list import JobList
from scalelab.records.store import RunStore

REUSED_WITHIN_S = 5.0
"""Seconds that a GPU may wait for its next trial, as a rule."""

# Short trials, so that a fault meets one of many.
MANY: dict[str, Any] = {
    "workload": {"name": "emulated", "sample_time_s": 0.002},
    "measure": {
        "kind": "throughput",
        "warmup_steps": 1,
        "steps": 12,
        "repeats": 9,
        "canary_every": 0,
    },
    "local_batch_size": [4, 8, 16],
}
FEW: dict[str, Any] = {**MANY, "measure": {**MANY["measure"], "repeats": 4}}
FIFTY_FOUR = {**MANY, "gpus": [1, 4]}
TWENTY_SEVEN = {**MANY, "gpus": [1]}
TWELVE = {**FEW, "gpus": [2]}
TWELVE_ON_TWO_NODES = {**FEW, "gpus": [4]}
# 45 s in all, and a checkpoint after 30 s.
LONG: dict[str, Any] = {
    "workload": {
        "name": "emulated",
        "sample_time_s": 0.01,
        "fixed_time_s": 0.005,
        "min_samples": 2000,
        "critical_batch_size": 4,
    },
    "measure": {
        "kind": "convergence",
        "max_samples": 8000,
        "evaluate_every_samples": 400,
    },
    "job": {"target": "val_acc >= 0.95"},
    "gpus": [1],
    "local_batch_size": [4],
}


def loses_a_job_a_nanny_and_a_worker(swept: BatchSweep) -> str:
    """Sweep 54 trials, some on two nodes, while this happens; return what it said."""
    system = swept.system
    swept.start()
    swept.wait_for_trials(3)
    system.cancel(running_job(swept))
    swept.wait_for_trials(12)
    worker_of_a_node(system).parent().kill()
    swept.wait_for_trials(24)
    worker_of_a_node(system).kill()
    code, said = swept.end(200)
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(54)
    check_gpus_were_reused(rows)
    assert len(re.findall(r"^Node \S+ was lost; ", said, re.MULTILINE)) >= 3, said
    # The nanny's death ends its job, that of the worker does not.
    cluster = swept.directory / "cluster"
    assert JobList.read(cluster).last_number >= 4, said
    assert len(list(cluster.glob("*.log"))) >= 4
    lost = swept.observations().query("outcome != 'completed'")
    assert set(lost["outcome"]) == {"node_fail"}, lost["reason"].to_list()
    return said


def loses_a_job_that_waits(
    swept: BatchSweep, num_trials: int, other: str, why_it_waits: str
) -> None:
    """Sweep while another job holds all there is, and the sweep's job is deleted."""
    system = swept.system
    swept.start()
    said = wait_until(
        lambda: why_it_waits in (now := swept.status()) and now, "status says why"
    )
    assert f"{swept.name}-1 (job " in said
    (queued,) = set(system.jobs()) - {other}
    system.cancel(queued)
    wait_until(lambda: set(system.jobs()) - {queued, other}, "another job waits")
    system.cancel(other)
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    swept.check_complete(num_trials)


def loses_its_driver(swept: BatchSweep) -> None:
    """Sweep 27 trials whose driver is killed, and go on in another process."""
    system = swept.system
    swept.start()
    swept.wait_for_trials(4)
    swept.kill_driver()
    wait_until(lambda: not system.user_processes(), "the nodes have gone", 60)
    before = swept.num_measured()
    code, said = swept.run()
    assert code == 0, said + swept.job_logs()
    left = 27 - before
    assert re.search(rf"Continuing .*: {before} trials done, {left} ", said), said
    swept.check_complete(27)


def is_preempted_and_left_alone(
    swept: BatchSweep,
    preempt: Callable[[], None],
    leave_alone: Callable[[], None],
) -> tuple[str, pd.DataFrame]:
    """Sweep 12 trials while a job is preempted and the batch system restarts.

    Parameters
    ----------
    swept
        The sweep.
    preempt
        Preempts the job that runs.
    leave_alone
        Stops the batch system's server and starts it again.

    Returns
    -------
    str
        What the sweep said.
    pandas.DataFrame
        The attempts that were lost.
    """
    swept.start()
    swept.wait_for_trials(3)
    preempt()
    swept.wait_for_trials(6)
    leave_alone()
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    swept.check_complete(12)
    return said, swept.observations().query("outcome != 'completed'")


def loses_a_host(swept: BatchSweep, take_down: Callable[[], str]) -> None:
    """Sweep 12 trials on two nodes each, of which one goes down for good.

    Parameters
    ----------
    swept
        The sweep.
    take_down
        Takes down a host that runs a job, and returns its name.
    """
    swept.start()
    swept.wait_for_trials(3)
    host = take_down()
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(12)
    assert host not in rows.iloc[-1]["hosts"]


def outlasts_a_walltime(swept: BatchSweep) -> None:
    """Sweep one trial that is longer than any job may take."""
    code, said = swept.run(300)
    assert code == 0, said + swept.job_logs()
    swept.check_complete(1)
    rows = swept.observations()
    *cut_off, last = rows["outcome"]
    assert cut_off, rows
    assert set(cut_off) == {"preempted"}, rows["reason"].to_list()
    assert last == "completed"
    streams = RunStore.open(swept.directory).streams()
    steps = streams[streams["attempt"].eq(len(rows))]["step"]
    assert steps.min() > 1, "it went on from a checkpoint"


def running_job(swept: BatchSweep) -> str:
    """Wait for a job that runs, and return it."""

    def running() -> list[str]:
        jobs = swept.system.jobs().items()
        return [job for job, state in jobs if state == "RUNNING"]

    return str(wait_until(running, "a job runs")[0])


def worker_of_a_node(system: BatchSystem) -> psutil.Process:
    """Return the worker of the node that has been up for longest; the nanny's child."""
    servers = processes_of(system, "scalelab.launch.ranks.server")
    worker = min(servers, key=psutil.Process.create_time).parent()
    assert worker is not None
    return worker


def check_gpus_were_reused(rows: pd.DataFrame) -> None:
    """Check that the next trial on a host started within seconds after one ended."""
    waits = []
    for _, trials in rows.explode("hosts").groupby("hosts"):
        for ended in trials["ended_at"]:
            later = trials.loc[trials["started_at"] >= ended, "started_at"]
            if len(later):
                waits.append((later.min() - ended).total_seconds())
    # Not all: a node that was lost took its time to be replaced.
    assert pd.Series(waits).median() < REUSED_WITHIN_S, waits
