"""A real SLURM on this machine: a login node and compute nodes with fake GPUs.

Everything runs in namespaces of its own (mounts, processes, host names, networks) below
one process, so that ending this process ends SLURM and all that its jobs left behind,
and nothing outside is touched. The nodes differ in address and host name and share a
file system. Daemons are root's; jobs and drivers are an ordinary user's.

A GPU is a character device that does nothing: SLURM counts it and sets
``CUDA_VISIBLE_DEVICES``, and CUDA finds none.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
from waiting import DEADLINE_S, wait_until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "unshare", "nsenter", "setpriv")
USER, USER_ID = "researcher", 4242
REPOSITORY = Path(__file__).parents[2]
_INIT = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""
_NAMESPACES = ("--mount", "--uts", "--net", "--pid")
_UNSHARE = ("unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

CONFIGURATION = """
ClusterName=throwaway
SlurmctldHost=login(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={state}/munge/sock
SlurmctldPidFile={state}/run/slurmctld.pid
SlurmctldLogFile={state}/log/slurmctld.log
StateSaveLocation={state}/slurmctld
SlurmdPidFile={state}/run/slurmd.%n.pid
SlurmdLogFile={state}/log/slurmd.%n.log
SlurmdSpoolDir={state}/spool/%n
# The nodes have more cores on paper than the machine has.
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
{accounting}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=3
MinJobAge=300
SlurmctldTimeout=10
SlurmdTimeout=5
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-0 PriorityTier=10
PartitionName=high Nodes=ALL MaxTime=1-0 PriorityTier=20
PartitionName=short Nodes=ALL MaxTime=10 PriorityTier=10
"""
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacct")
ACCOUNTING = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=10.77.0.1
AccountingStoragePass={state}/munge/sock
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1"""
DATABASE_DAEMON = """
AuthType=auth/munge
AuthInfo=socket={state}/munge/sock
DbdHost=login
DbdAddr=10.77.0.1
SlurmUser=root
PidFile={state}/run/slurmdbd.pid
LogFile={state}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=root
StoragePass=none
"""


class ThrowawaySlurm:
    """A SLURM that lives as long as the object is entered.

    Parameters
    ----------
    num_nodes, gpus_per_node
        Its compute nodes ``n1``, ``n2``, ...
    has_accounting
        Whether ``slurmdbd`` keeps what jobs used, in a database of its own.
    """

    def __init__(
        self,
        num_nodes: int = 4,
        gpus_per_node: int = 2,
        *,
        has_accounting: bool = False,
    ) -> None:
        self.num_nodes = num_nodes
        self.gpus_per_node = gpus_per_node
        self.has_accounting = has_accounting
        self.state = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """The user's home, on the file system all nodes share."""
        return self.state / "home"

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self._process = subprocess.Popen(
                [*_UNSHARE, sys.executable, "-c", _INIT], stdout=subprocess.PIPE
            )
            self._init = self._await_init(self._process)
            self.run(["sh", "-e"], user="root", input=self._script())
            wait_until(self.is_idle, "all nodes are idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            wait_until(lambda: not self.processes(), "all processes are gone")
        shutil.rmtree(self.state, ignore_errors=True)

    def command(
        self,
        argv: Sequence[str],
        *,
        user: str = USER,
        node: str | None = None,
        directory: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command line that runs a program inside.

        Parameters
        ----------
        argv
            The program.
        user
            ``researcher`` or ``root``.
        node
            Where, e.g. ``n1``; None: on the login node.
        directory
            Working directory; default: the user's home.
        env
            Further variables.
        """
        enter = ["nsenter", "--target", str(self._init)]
        enter += [*_NAMESPACES, f"--wd={directory or self.home}"]
        if node is not None:
            enter += ["nsenter", f"--net=/run/netns/{node}"]
        if user == USER:
            ids = (f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups")
            enter += ["setpriv", *ids]
        path = (
            f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        )
        variables = {
            "PATH": path,
            "HOME": str(self.home),
            "USER": user,
            "SLURM_CONF": str(self.state / "etc" / "slurm.conf"),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        return [*enter, "env", "-i", *settings, *argv]

    def run(self, argv: Sequence[str], **options: Any) -> str:
        """Run a program inside and return what it prints; it must succeed."""
        content = options.pop("input", None)
        timeout = options.pop("timeout", DEADLINE_S)
        done = subprocess.run(
            self.command(argv, **options),
            input=content,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def start_scalelab(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``scalelab`` as the user; all it says comes through one pipe."""
        return subprocess.Popen(
            self.command(["scalelab", *arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def scalelab(self, *arguments: str, timeout: float = 300) -> tuple[int, str]:
        """Run ``scalelab`` as the user; return its status and all it says."""
        done = subprocess.run(
            self.command(["scalelab", *arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        return done.returncode, done.stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that is queued or runs, by its id."""
        lines = self.run(["squeue", "-h", "-o", "%i %T"]).splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self.run(["scancel", job])

    def is_idle(self) -> bool:
        """Tell whether every node waits for a job."""
        states = self.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"]).split()
        return states == ["idle"] * self.num_nodes

    def processes(self, user_id: int | None = None) -> list[psutil.Process]:
        """Return what runs inside, or what one user runs."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") != self._namespace:
                    continue
                if user_id is None or process.uids().real == user_id:
                    found.append(process)
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    def user_processes(self) -> list[psutil.Process]:
        """Return what the user runs."""
        return self.processes(USER_ID)

    def log(self) -> str:
        """Return the ends of the daemons' logs."""
        files = sorted((self.state / "log").glob("*"))
        return "".join(
            f"\n--- {file.name}\n{file.read_text()[-1500:]}" for file in files
        )

    def restart_controller(self) -> None:
        """End the controller's daemon and start it again a moment later."""
        daemon = self.state / "run" / "slurmctld.pid"
        pid = daemon.read_text().strip()
        stop = f"kill {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.1; done"
        self.run(["sh", "-e"], user="root", input=f"{stop}; sleep 1; {self._slurmctld}")

    def stop_node(self, node: str) -> None:
        """End a node's daemon and all that runs there, as if its power had gone."""
        namespace = self.run(["readlink", "/proc/self/ns/net"], node=node).strip()
        for process in self.processes():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/net") == namespace:
                    process.kill()
            except (OSError, psutil.NoSuchProcess):
                continue

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        self.run(["sh", "-e"], user="root", input=self._slurmd(node))

    def _await_init(self, unshare: subprocess.Popen[bytes]) -> int:
        """Return the first process inside once it has read all it needs.

        What is mounted later hides the files of its interpreter for a moment.
        """
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == b"ready\n"
        (init,) = psutil.Process(unshare.pid).children()
        self._namespace = os.readlink(f"/proc/{init.pid}/ns/pid")
        return init.pid

    def _prepare(self) -> None:
        state = self.state
        state.chmod(0o755)
        for name in ("etc", "dev", "log", "run", "spool", "slurmctld", "munge", "home"):
            (state / name).mkdir()
        (state / "munge").chmod(0o711)
        os.chown(self.home, USER_ID, USER_ID)
        key = state / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        for index in range(self.gpus_per_node):
            device = state / "dev" / f"nvidia{index}"
            os.mknod(device, 0o20666, os.makedev(1, 3))
            device.chmod(0o666)
        accounting = "AccountingStorageType=accounting_storage/none"
        if self.has_accounting:
            accounting = ACCOUNTING.format(state=state)
            daemon = state / "etc" / "slurmdbd.conf"
            daemon.touch(0o600)
            daemon.write_text(DATABASE_DAEMON.format(state=state))
        (state / "etc" / "slurm.conf").write_text(
            CONFIGURATION.format(
                state=state,
                nodes="\n".join(self._node_lines()),
                accounting=accounting,
            )
        )
        (state / "etc" / "gres.conf").write_text(
            f"NodeName=n[1-{self.num_nodes}] Name=gpu "
            f"File={state}/dev/nvidia[0-{self.gpus_per_node - 1}]\n"
        )
        (state / "etc" / "cgroup.conf").touch()
        user = f"{USER}:x:{USER_ID}:{USER_ID}::{self.home}:/bin/bash\n"
        passwd = Path("/etc/passwd").read_text() + user
        (state / "etc" / "passwd").write_text(passwd)
        group = Path("/etc/group").read_text() + f"{USER}:x:{USER_ID}:\n"
        (state / "etc" / "group").write_text(group)
        hosts = ["127.0.0.1 localhost", "10.77.0.1 login"]
        hosts += [f"10.77.0.{10 + index} n{index}" for index in self._nodes()]
        (state / "etc" / "hosts").write_text("\n".join(hosts) + "\n")

    def _nodes(self) -> range:
        return range(1, self.num_nodes + 1)

    def _node_lines(self) -> list[str]:
        return [
            f"NodeName=n{index} NodeAddr=10.77.0.{10 + index} CPUs=8 RealMemory=6000 "
            f"Gres=gpu:{self.gpus_per_node} State=UNKNOWN"
            for index in self._nodes()
        ]

    def _script(self) -> str:
        """Return what root does inside, once."""
        state = self.state
        lines = [f"export SLURM_CONF={state}/etc/slurm.conf", "hostname login"]
        for name in ("passwd", "group", "hosts"):
            lines.append(f"mount --bind {state}/etc/{name} /etc/{name}")
        lines += _opened(
            (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY), state / "kept"
        )
        lines += [
            "mkdir -p /run/netns",
            "mount -t tmpfs tmpfs /run/netns",
            "ip link set lo up",
            "ip link add bridge type bridge",
            "ip addr add 10.77.0.1/24 dev bridge",
            "ip link set bridge up",
        ]
        for index in self._nodes():
            lines += [
                f"ip netns add n{index}",
                f"ip link add port{index} type veth peer name eth0 netns n{index}",
                f"ip link set port{index} master bridge up",
                f"ip -n n{index} addr add 10.77.0.{10 + index}/24 dev eth0",
                f"ip -n n{index} link set eth0 up",
                f"ip -n n{index} link set lo up",
            ]
        output = f"</dev/null >>{state}/log/output 2>&1"
        lines += [
            f"munged --key-file={state}/munge/key --socket={state}/munge/sock "
            f"--pid-file={state}/munge/pid --log-file={state}/log/munged "
            f"--seed-file={state}/munge/seed --force {output}",
        ]
        if self.has_accounting:
            lines += self._accounting(output)
        lines.append(self._slurmctld)
        lines += [self._slurmd(f"n{index}") for index in self._nodes()]
        return "\n".join(lines)

    def _accounting(self, output: str) -> list[str]:
        """Return the lines that start the database and its daemon."""
        state = self.state
        answers = "(: </dev/tcp/127.0.0.1/{port}) 2>/dev/null"
        await_port = f"until {answers}; do sleep 0.1; done"
        return [
            f"mariadb-install-db --no-defaults --datadir={state}/database --user=root "
            f"--skip-test-db {output}",
            f"mariadbd --no-defaults --datadir={state}/database --user=root "
            f"--socket={state}/run/database.sock --bind-address=127.0.0.1 "
            f"--skip-grant-tables --innodb-flush-log-at-trx-commit=0 {output} &",
            f"timeout 30 bash -c '{await_port.format(port=3306)}'",
            f"slurmdbd {output}",
            f"timeout 30 bash -c '{await_port.format(port=6819)}'",
            f"sacctmgr --immediate add cluster throwaway {output}",
        ]

    @property
    def _slurmctld(self) -> str:
        """The line that starts the controller's daemon."""
        conf = f"{self.state}/etc/slurm.conf"
        return f"slurmctld -f {conf} </dev/null >>{self.state}/log/output 2>&1"

    def _slurmd(self, node: str) -> str:
        """Return the line that starts a node's daemon.

        Not with ``ip netns exec``, which mounts another /sys without control groups.
        """
        conf = f"{self.state}/etc/slurm.conf"
        start = f"hostname {node}; exec slurmd -N {node} -f {conf}"
        return (
            f"nsenter --net=/run/netns/{node} unshare --uts sh -c {shlex.quote(start)} "
            f"</dev/null >>{self.state}/log/output 2>&1"
        )


def _opened(paths: Sequence[Path], kept: Path) -> list[str]:
    """Return what lets other users reach paths below directories closed to them.

    A closed directory is covered by an empty one that holds only what is needed.
    """
    needed: dict[Path, set[Path]] = {}
    for path in map(Path.resolve, paths):
        closed = [each for each in (*reversed(path.parents), path) if _is_closed(each)]
        if closed:
            inside = set(path.iterdir()) if closed[0] == path else {path}
            needed.setdefault(closed[0], set()).update(inside)
    lines = []
    for number, (directory, inside) in enumerate(needed.items()):
        copies = {path: kept / str(number) / path.name for path in inside}
        for path, copy in copies.items():
            lines += [f"{_make(path)} {copy}", f"mount --rbind {path} {copy}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {directory}")
        for path, copy in copies.items():
            lines += [f"{_make(path)} {path}", f"mount --rbind {copy} {path}"]
    return lines


def _make(path: Path) -> str:
    return "mkdir -p" if path.is_dir() else "install -D /dev/null"


def _is_closed(directory: Path) -> bool:
    return not directory.stat().st_mode & 0o001
