"""The jobs and hosts of the stand-in for PBS; see ``standin_pbs.py``.

There is no daemon: whichever program is called does first what the server, its
scheduler and the hosts' MoMs would have done meanwhile. State lies in ``$STANDIN_PBS``.
"""

import fcntl
import json
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STATE = Path(os.environ["STANDIN_PBS"])
SERVER = "standin"
HOSTS = ("n1", "n2", "n3", "n4")
FAST = ("n1", "n2")  # with the host's resource "fast=True"
PER_HOST = {"ncpus": 4, "ngpus": 2}
TOTAL = {name: size * len(HOSTS) for name, size in PER_HOST.items()}

MOM_LOOKS_S = 2  # $min_check_poll; its default is 10
KILL_DELAY_S = 10  # the default of kill_delay
MOM_TELLS_S = 120  # the longest between two tellings of the time used
KILLED, WALLTIME_EXCEEDED = 271, -29
LEAVES_S = 3  # the shortest seen between a job's death and its end for the server
NODE_FAIL_REQUEUE_S = 5  # set by the administrator; the default is 310


@contextmanager
def server() -> Iterator[Any]:
    """Give the jobs by id and what hosts are down; go on with them before and after."""
    with (STATE / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = STATE / "server.json"
        known = {"number": 0, "jobs": {}, "down": {}, "history": None}
        if path.exists():
            known = json.loads(path.read_text())
        go_on(known)
        yield known
        go_on(known)
        path.write_text(json.dumps(known))


def go_on(known: Any) -> None:
    """End what has ended or ran too long, start what fits."""
    jobs, now_s = known["jobs"], time.time()
    for job_id, job in list(jobs.items()):
        if job["state"] in ("R", "S") and has_ended(job, known["down"], now_s):
            if job["reruns"]:
                job.update(state="Q", reruns=False, killed_s=None, gone_s=None)
            else:
                forget(known, job_id)
    for job_id, job in jobs.items():
        if job["state"] == "Q":
            hosts = place(job, known)
            if isinstance(hosts, str):
                job["comment"] = hosts
            else:
                start(job_id, job, hosts)


def has_ended(job: Any, down: Any, now_s: float) -> bool:
    """Do what the MoMs do about a job; tell whether the server has heard of its end."""
    lost = [down[host] for host in job["hosts"] if host in down]
    if lost:
        # The server knows no better until it has waited long enough.
        is_given_up = now_s > min(lost) + NODE_FAIL_REQUEUE_S
        job["reruns"] = is_given_up and job["is_rerunable"]
        return is_given_up
    ran_s = 0 if job["state"] == "S" else int(now_s - job["start_s"])
    looked_s = ran_s // MOM_LOOKS_S * MOM_LOOKS_S
    if looked_s > job["walltime_s"] and not job["killed_s"]:
        with Path(job["output"]).open("a") as output:
            limit = f"walltime {looked_s} exceeded limit {job['walltime_s']}"
            print(f"=>> PBS: job killed: {limit}", file=output)
        terminate(job, WALLTIME_EXCEEDED)
    if is_alive(job["pid"]):
        if job["killed_s"] and now_s > job["killed_s"] + KILL_DELAY_S:
            send(job, signal.SIGKILL)
        return False
    job["gone_s"] = job["gone_s"] or now_s
    return not job["killed_s"] or now_s > job["gone_s"] + LEAVES_S


def place(job: Any, known: Any) -> list[str] | str:
    """Return a host for each chunk, or why there are not enough."""
    free = {host: dict(PER_HOST) for host in HOSTS if host not in known["down"]}
    for other in known["jobs"].values():
        for host in other["hosts"] if other["state"] == "R" else ():
            for name, size in other["chunk"].items():
                if host in free:
                    free[host][name] -= size
    chunk, hosts = job["chunk"], []
    for _ in range(job["num_chunks"]):
        for host, has in free.items():
            is_taken = job["is_scattered"] and host in hosts
            is_taken |= job["is_fast"] and host not in FAST
            if not is_taken and all(has[name] >= chunk[name] for name in chunk):
                hosts.append(host)
                for name, size in chunk.items():
                    has[name] -= size
                break
    if len(hosts) == job["num_chunks"]:
        return hosts
    for name, size in chunk.items():
        asked, total = size * job["num_chunks"], TOTAL[name]
        if asked > total:
            return f"Can Never Run: {insufficient(name, asked, total, total)}"
    # Where a chunk is too large for any host nothing else is said.
    left = {name: sum(has[name] for has in free.values()) for name in chunk}
    name = min(chunk, key=lambda name: left[name] - chunk[name] * job["num_chunks"])
    asked = chunk[name] * job["num_chunks"]
    return f"Not Running: {insufficient(name, asked, left[name], TOTAL[name])}"


def insufficient(name: str, asked: int, left: int, total: int) -> str:
    sizes = f"(R: {asked} A: {left} T: {total})"
    return f"Insufficient amount of resource: {name} {sizes}"


def start(job_id: str, job: Any, hosts: list[str]) -> None:
    """Run a job's script on the first of its hosts, with what PBS sets and no more."""
    nodefile, scratch = STATE / f"{job_id}.nodes", STATE / f"{job_id}.tmp"
    nodefile.write_text("".join(f"{host}\n" for host in hosts))
    scratch.mkdir(exist_ok=True)
    cores = str(job["chunk"].get("ncpus", 1))
    env = {
        **login(hosts[0]),
        "PATH": f"{STATE.with_name('bin')}:/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": str(scratch),
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": job_id,
        "PBS_JOBNAME": job["name"],
        "PBS_NODEFILE": str(nodefile),
        "PBS_NODENUM": "0",
        "PBS_TASKNUM": "1",
        "PBS_QUEUE": job["queue"],
        "PBS_O_WORKDIR": job["directory"],
        "NCPUS": cores,
        "OMP_NUM_THREADS": cores,
    }
    with Path(job["output"]).open("ab") as output:
        process = subprocess.Popen(
            on_host(hosts[0], ["bash", job["script"]]),
            cwd=env["HOME"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    job.update(state="R", pid=process.pid, hosts=hosts, start_s=time.time())
    job.update(comment="Job run", run_count=job["run_count"] + 1)


def login(host: str) -> dict[str, str]:
    """Return what the user has on a host, and what marks processes that run there."""
    names = ("USER", "LOGNAME", "LANG")
    known = {name: os.environ[name] for name in names if name in os.environ}
    known["HOME"] = pwd.getpwuid(os.getuid()).pw_dir  # not that of whoever submits
    return {**known, "STANDIN_PBS": str(STATE), "STANDIN_HOST": host}


def on_host(host: str, argv: list[str]) -> list[str]:
    """Return the command line that runs a program under a host's name."""
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    named = ["sh", "-c", 'hostname "$0" && exec "$@"', host, *argv]
    return ["unshare", *rights, "--uts", *named]


def suspend(job: Any) -> None:
    """Stop a job; others may have what it held."""
    send(job, signal.SIGSTOP)
    job.update(state="S", comment="Job was suspended")


def terminate(job: Any, status: int = KILLED, comment: str = "") -> None:
    send(job, signal.SIGTERM)
    job.update(killed_s=time.time(), status=status)
    job["comment"] = comment or job["comment"]


def forget(known: Any, job_id: str) -> None:
    """Remove a job that has ended; into the history, where one is kept."""
    job = known["jobs"].pop(job_id)
    if known["history"] is not None:
        known["history"][job_id] = {**job, "state": "F"}


def told_s(ran_s: float) -> int:
    """Return the walltime that the MoM has told of: ever more seldom, as it looks."""
    told, pause = 0, 10
    while told + pause <= ran_s:
        told, pause = told + pause, min(2 * pause, MOM_TELLS_S)
    return told


def send(job: Any, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(job["pid"], number)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def cut_power(host: str) -> None:
    """End all that runs on a host at once."""
    marks = {f"STANDIN_PBS={STATE}".encode(), f"STANDIN_HOST={host}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marks <= set(path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)
