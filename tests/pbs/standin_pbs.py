"""A stand-in for PBS: not PBS, but programs that answer as OpenPBS 23.06 was seen to.

``qsub``, ``qstat``, ``qdel`` and ``pbsdsh`` with what a sweep uses of them: exit codes,
``-F json`` with its values that look like numbers made numbers, "Can Never Run", no
history of jobs that ended. Jobs are processes of this machine; what is scheduled is
scheduled whenever one of the programs is called. State lies in ``$STANDIN_PBS``.
"""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

HOME = Path(os.environ["STANDIN_PBS"])
SERVER = "standin"
TOTAL = {"ncpus": 8, "ngpus": 4}
UNKNOWN_QUEUE, UNKNOWN_JOB, FINISHED_JOB = 170, 153, 35


@contextmanager
def jobs():
    """Give all jobs by id, schedule, and write them down again."""
    with (HOME / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "jobs.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        schedule(known)
        yield known
        schedule(known)
        path.write_text(json.dumps(known))


def schedule(known) -> None:
    """Forget what has ended, end what has run too long, start what fits."""
    for job_id, job in list(known.items()):
        if job["state"] == "R":
            if time.time() > job["start"] + job["walltime"]:
                kill(job)
            if not is_alive(job["pid"]):
                del known[job_id]
    for job_id, job in known.items():
        if job["state"] != "Q":
            continue
        for name, total in TOTAL.items():
            asked = job["asked"].get(name, 0)
            held = sum(
                other["asked"].get(name, 0)
                for other in known.values()
                if other["state"] == "R"
            )
            sizes = f"Insufficient amount of resource: {name} "
            sizes += f"(R: {asked} A: {total - held} T: {total})"
            if asked > total:
                job["comment"] = f"Can Never Run: {sizes}"
                break
            if asked > total - held:
                job["comment"] = f"Not Running: {sizes}"
                break
        else:
            start(job_id, job)


def start(job_id, job) -> None:
    nodefile = HOME / f"{job_id}.nodes"
    nodefile.write_text("".join(f"host{index}\n" for index in range(job["chunks"])))
    env = {**os.environ, "PBS_JOBID": job_id, "PBS_NODEFILE": str(nodefile)}
    with Path(job["output"]).open("ab") as output:
        process = subprocess.Popen(
            ["bash", job["script"]],
            cwd=os.environ["HOME"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    job.update(state="R", pid=process.pid, start=time.time(), comment="Job run")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def kill(job) -> None:
    with suppress(ProcessLookupError):
        os.killpg(job["pid"], signal.SIGTERM)


def directives(script: str) -> dict[str, str]:
    found = {}
    for flag, value in re.findall(r"^#PBS (-\w)\s*(.*)$", script, re.MULTILINE):
        name, _, rest = value.partition("=")
        found[f"-l {name}" if flag == "-l" else flag] = rest if flag == "-l" else value
    return found


def clock(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def qsub(path: str) -> int:
    script = Path(path).read_text()
    asked = directives(script)
    if asked.get("-q") == "nowhere":
        print("qsub: Unknown queue", file=sys.stderr)
        return UNKNOWN_QUEUE
    chunks, *parts = asked["-l select"].split(":")
    sizes = dict(part.split("=") for part in parts)
    with jobs() as known:
        number = int((HOME / "number").read_text()) + 1
        (HOME / "number").write_text(str(number))
        job_id = f"{number}.{SERVER}"
        copy = HOME / f"{job_id}.sh"
        copy.write_text(script)
        known[job_id] = {
            "name": asked["-N"],
            "state": "Q",
            "chunks": int(chunks),
            "asked": {
                name: int(chunks) * int(sizes[name]) for name in TOTAL if name in sizes
            },
            "walltime": clock(asked.get("-l walltime", "100:00:00")),
            "output": asked["-o"],
            "script": str(copy),
            "comment": "",
        }
    print(job_id)
    return 0


def qstat(*words: str) -> int:
    assert list(words[:3]) == ["-f", "-F", "json"], words
    status, shown = 0, {}
    with jobs() as known:
        for job_id in words[3:] or list(known):
            if job_id not in known:
                print(f"qstat: Unknown Job Id {job_id}", file=sys.stderr)
                status = UNKNOWN_JOB
                continue
            job = known[job_id]
            name = job["name"]
            shown[job_id] = {
                "Job_Name": int(name) if name.isdigit() else name,
                "job_state": job["state"],
                "comment": job["comment"],
                "Resource_List": {"walltime": clock_of(job["walltime"])},
            }
            if job["state"] == "R":
                used_s = int(time.time() - job["start"]) // 10 * 10
                shown[job_id]["resources_used"] = {"walltime": clock_of(used_s)}
    values = {"timestamp": int(time.time())}
    print(json.dumps({**values, "Jobs": shown} if shown else values))
    return status


def clock_of(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def qdel(job_id: str) -> int:
    with jobs() as known:
        if job_id not in known:
            print(f"qdel: Unknown Job Id {job_id}", file=sys.stderr)
            return UNKNOWN_JOB
        if known[job_id]["state"] == "R":
            kill(known[job_id])
        else:
            del known[job_id]
    return 0


def pbsdsh(*words: str) -> int:
    hosts = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    env = {"PATH": "/bin:/usr/bin", "PBS_JOBID": os.environ["PBS_JOBID"]}
    tasks = [subprocess.Popen(words[1:], env=env) for _ in hosts]
    for task in tasks:
        task.wait()
    return 0


if __name__ == "__main__":
    programs = {"qsub": qsub, "qstat": qstat, "qdel": qdel, "pbsdsh": pbsdsh}
    sys.exit(programs[sys.argv[1]](*sys.argv[2:]))
