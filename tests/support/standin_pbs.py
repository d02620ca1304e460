"""A stand-in for PBS: not PBS, but programs that answer as PBS was seen to.

``qsub``, ``qstat``, ``qdel`` and ``pbsdsh`` with what a sweep uses of them, and
``admin`` for what happens to a cluster. Jobs are processes of this machine under the
names of four hosts with 4 cores and 2 GPUs each. Where its behaviour comes from:

From runs of OpenPBS 23.06 with GPUs that were a counted resource: exit statuses, ``-F
json`` whose values that look like numbers are numbers and which shows the first of
several jobs alone (as OpenPBS does since December 2023; the text form shows all), "Can
Never Run" and "Not Running", names that ``-N`` and ``-o`` refuse, resources that stand
in ``select`` only, no history of jobs that ended unless it is configured, a walltime
used that is told ever more seldom, the environment of jobs and of what pbsdsh starts, a
job that was deleted or ran too long staying for seconds, as "E" with its status, what
is written to the output of the latter, a suspended job ("S", as preemption may do)
whose worker says no more, a requeued job keeping its id, a job on a host that went down
going on as "R".

From OpenPBS's sources (``src/server/node_manager.c``, ``req_rerun.c``,
``req_preemptjob.c``, ``src/cmds/qdel.c``): a job of a host that is down for
``node_fail_requeue`` seconds is requeued, or deleted if it is not rerunable; a requeue
of a job that is not rerunable is refused, and preemption goes on to the next method of
``preempt_order``, here "R D".

From what users of OpenPBS published: the words and statuses of a server that cannot be
reached (qstat's: QutEcoacoustics/baw-server issue 776), and of qdel where a MoM cannot.

Simpler than PBS: the MoMs look more often, nothing is scheduled while nobody asks, and
a job's processes are the process group of its script.
"""

import json
import os
import pwd
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from standin_jobs import (
    SERVER,
    STATE,
    cut_power,
    forget,
    login,
    on_host,
    server,
    suspend,
    terminate,
    told_s,
)

UNKNOWN_QUEUE, UNKNOWN_JOB, NO_MOM, NO_SERVER = 170, 153, 222, 162
UNKNOWN_RESOURCE, FINISHED, USAGE, NOT_BESIDE_SELECT = 187, 35, 2, 5
MAX_JOB_NAME = 230
DOWN = STATE / "server-is-down"


def directives(script: str) -> dict[str, str]:
    found = {}
    for flag, value in re.findall(r"^#PBS (-\w)\s*(.*)$", script, re.MULTILINE):
        name, _, rest = value.partition("=")
        found[f"-l {name}" if flag == "-l" else flag] = rest if flag == "-l" else value
    return found


def clock(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def clock_of(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def qsub(path: str) -> int:
    script = Path(path).read_text()
    asked = directives(script)
    if asked.get("-q") == "nowhere":
        print("qsub: Unknown queue", file=sys.stderr)
        return UNKNOWN_QUEUE
    num_chunks, *parts = asked["-l select"].split(":")
    sizes = dict(part.split("=") for part in parts)
    if refusal := refused(asked, sizes):
        status, words = refusal
        print(f"qsub: {words}", file=sys.stderr)
        return status
    with server() as known:
        known["number"] += 1
        job_id = f"{known['number']}.{SERVER}"
        copy = STATE / f"{job_id}.sh"
        copy.write_text(script)
        known["jobs"][job_id] = {
            "name": asked["-N"],
            "queue": asked.get("-q", "workq"),
            "state": "Q",
            "num_chunks": int(num_chunks),
            "chunk": {
                name: int(sizes[name]) for name in ("ncpus", "ngpus") if name in sizes
            },
            "is_fast": "fast" in sizes,
            "is_scattered": asked.get("-l place", "").startswith("scatter"),
            "walltime_s": clock(asked.get("-l walltime", "100:00:00")),
            "is_rerunable": asked.get("-r", "y") == "y",
            "output": str(Path.cwd() / asked.get("-o", f"{asked['-N']}.log")),
            "directory": str(Path.cwd()),
            "script": str(copy),
            "hosts": [],
            "comment": "",
            "run_count": 0,
            "reruns": False,
            "killed_s": None,
            "gone_s": None,
            "status": 0,
        }
    print(job_id)
    return 0


def refused(asked: dict[str, str], sizes: dict[str, str]) -> tuple[int, str] | None:
    """Return the status and words of a refusal; None: what is asked for is there."""
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", asked["-N"]):
        return USAGE, "illegal -N value\nusage: qsub [-a date_time] [-A account_string]"
    if len(asked["-N"]) > MAX_JOB_NAME:
        return USAGE, "Job name is too long"
    output = asked.get("-o", "")
    if not output.isascii() or re.search("['\"]", output):
        return USAGE, "unmatched '"
    if "-l fast" in asked:
        words = 'cannot be used with "select" or "place", resource is: fast'
        return NOT_BESIDE_SELECT, f'"-lresource=" {words}'
    for name in sizes.keys() - {"ncpus", "ngpus", "mem", "mpiprocs", "fast"}:
        return UNKNOWN_RESOURCE, f"Unknown resource: {name}"
    return None


def qstat(*words: str) -> int:
    with_history = words[0] == "-x"
    words = words[with_history:]
    assert words[0] == "-f", words
    as_json = words[1:3] == ("-F", "json")
    asked = words[3 if as_json else 1 :]
    status, shown = 0, {}
    with server() as known:
        for job_id in asked or list(known["jobs"]):
            ended = known["history"] or {}
            if job_id in known["jobs"]:
                shown[job_id] = view(known["jobs"][job_id])
            elif job_id in ended and with_history:
                shown[job_id] = view(ended[job_id])
            elif job_id in ended:
                words_of = "use -x or -H to obtain historical job information"
                print(f"qstat: {job_id} Job has finished, {words_of}", file=sys.stderr)
                status = FINISHED
            else:
                print(f"qstat: Unknown Job Id {job_id}", file=sys.stderr)
                status = UNKNOWN_JOB
    if as_json:
        # Of several that are asked for, the first one alone.
        some = dict(list(shown.items())[: 1 if asked else None])
        print(json.dumps({**header(), "Jobs": some} if some else header()))
        return status
    for job_id, attributes in shown.items():
        print(f"Job Id: {job_id}")
        for name, value in flat(attributes).items():
            line = f"    {name} = {value}"
            print("\n\t".join(line[at : at + 78] for at in range(0, len(line), 78)))
        print()
    return status


def flat(attributes: dict[str, Any]) -> dict[str, str]:
    """Return attributes as the text form names them: ``Resource_List.ngpus``."""
    found = {}
    for name, value in attributes.items():
        if isinstance(value, dict):
            found |= {f"{name}.{each}": str(inner) for each, inner in value.items()}
        else:
            found[name] = str(value)
    return found


def header() -> dict[str, object]:
    return {"timestamp": int(time.time()), "pbs_server": SERVER}


def view(job: Any) -> dict[str, object]:
    """Return what qstat shows of a job."""
    name, chunk = job["name"], job["chunk"]
    totals = {each: size * job["num_chunks"] for each, size in chunk.items()}
    shown = {
        "Job_Name": int(name) if name.isdigit() else name,
        "job_state": "E" if job["gone_s"] and job["state"] != "F" else job["state"],
        "queue": job["queue"],
        "Output_Path": f"{SERVER}:{job['output']}",
        "comment": job["comment"],
        "Rerunable": "True" if job["is_rerunable"] else "False",
        "Resource_List": {**totals, "walltime": clock_of(job["walltime_s"])},
    }
    if job["run_count"]:
        shown["run_count"] = job["run_count"]
    if job["gone_s"]:
        shown["Exit_status"] = job["status"]
    if job["state"] == "R":
        shown["stime"] = time.ctime(job["start_s"])
        sizes = ":".join(f"{each}={size}" for each, size in chunk.items())
        shown["exec_vnode"] = "+".join(f"({host}:{sizes})" for host in job["hosts"])
        used_s = time.time() - job["start_s"]
        if used_s > 1:
            shown["resources_used"] = {"walltime": clock_of(told_s(used_s))}
    return shown


def qdel(job_id: str) -> int:
    with server() as known:
        job = known["jobs"].get(job_id)
        if job is None:
            print(f"qdel: Unknown Job Id {job_id}", file=sys.stderr)
            return UNKNOWN_JOB
        if job["state"] == "Q":
            forget(known, job_id)
        elif set(job["hosts"]) & set(known["down"]):
            print(f"qdel: Server could not connect to MOM {job_id}", file=sys.stderr)
            return NO_MOM
        else:
            terminate(job, comment=f"{job['comment']} and terminated by {user()}")
    return 0


def user() -> str:
    return f"{pwd.getpwuid(os.getuid()).pw_name}@{SERVER}"


def pbsdsh(*words: str) -> int:
    nodefile = os.environ["PBS_NODEFILE"]
    first, *_ = hosts = Path(nodefile).read_text().split()
    tasks = []
    for number, host in enumerate(hosts):
        env = {**login(host), "PATH": "/bin:/usr/bin"}
        env |= {"PBS_JOBID": os.environ["PBS_JOBID"], "PBS_NODENUM": str(number)}
        if host != first:
            env["PBS_NODEFILE"] = nodefile
        tasks.append(subprocess.Popen(on_host(host, list(words[1:])), env=env))
    for number, task in enumerate(tasks):
        if status := task.wait():
            print(f"pbsdsh: task {number:#010x} exit status {status}", file=sys.stderr)
    return 0


def admin(what: str, name: str = "") -> int:
    """Do what an administrator does, or what happens to hosts."""
    if what == "stop-server":
        DOWN.touch()
    elif what == "start-server":
        DOWN.unlink()
    elif what == "can-name-hosts":
        return subprocess.run(on_host("n1", ["hostname"])).returncode
    with server() as known:
        if what == "preempt":
            job = known["jobs"][name]
            job["reruns"] = job["is_rerunable"]
            terminate(job)
        elif what == "keep-history":
            known["history"] = {}
        elif what == "suspend":
            suspend(known["jobs"][name])
        elif what == "cut-power":
            known["down"][name] = time.time()
            cut_power(name)
        elif what == "host-of":
            print(known["jobs"][name]["hosts"][0])
    return 0


def cannot_reach_server(program: str) -> int:
    """Say what the programs say while the server is away."""
    if program == "qdel":
        print(f"Couldn't connect to cluster: {SERVER}", file=sys.stderr)
        return NO_SERVER
    words = f"cannot connect to server {SERVER} (errno=15010)"
    print(f"Connection refused\n{program}: {words}", file=sys.stderr)
    if program == "qsub":
        return NO_SERVER
    print(json.dumps(header()))
    return 255


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    programs = {"qsub": qsub, "qstat": qstat, "qdel": qdel}
    if program in programs and DOWN.exists():
        sys.exit(cannot_reach_server(program))
    programs |= {"pbsdsh": pbsdsh, "admin": admin}
    sys.exit(programs[program](*arguments))
