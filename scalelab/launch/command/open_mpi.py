"""Starts an MPI program by Open MPI's ``mpirun``, on one node or on several.

``mpirun`` runs on the first node. Open MPI starts a daemon, ``orted``, on every other
node through a program that it calls like ``ssh``. Here that program is :func:`_ask`: it
connects to the process that waits on that node, :func:`_wait`, which executes the
daemon as its child. So no node needs ssh, and all that is started on a node belongs to
its attempt. Whoever connects proves that it knows a key that lies in a file of the
attempt for its user alone.
"""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.kinds.launchers import LaunchedProcess

_VERSION = re.compile(r"mpirun \(Open MPI\) (\d+)\.")
_MAJOR = "4"
# A node may see a file on a shared folder, or start its process, that much later.
_PATIENCE_S = 60.0
_POLL_S = 0.05
_KEY_BYTES = 32
_PLACES, _KEY_FILE = "SCALELAB_MPI_PLACES", "SCALELAB_MPI_KEY_FILE"


def words_of_node(
    process: LaunchedProcess, command: Sequence[str], env: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what the process of a node executes: ``mpirun``, or a waiting process."""
    if len({*process.hosts}) < process.num_nodes:
        raise SpecError(
            "launcher=mpirun: several nodes of this trial are one host, and Open MPI "
            "would start all ranks on one of them. Keep such trials on one node.",
            code="nodes_on_one_host",
        )

    places = {
        host: [host, ports[0]]
        for host, ports in zip(process.hosts, process.ports, strict=True)
    }
    key_file = Path(env["SCALELAB_TRIAL_DIR"], ".mpi-key")
    variables = [f"{_PLACES}={json.dumps(places)}", f"{_KEY_FILE}={key_file}"]

    program = (sys.executable, "-m", __name__)
    if process.node_rank > 0:
        return ("env", *variables, *program, "wait", process.hosts[process.node_rank])

    mpirun = _open_mpi(env["PATH"])
    # It is whole from the moment that it is there.
    written = key_file.with_suffix(".new")

    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(secrets.token_bytes(_KEY_BYTES))

    written.rename(key_file)
    return ("env", *variables, mpirun, *_options(process, program), *command)


def _open_mpi(search_path: str) -> str:
    mpirun = shutil.which("mpirun", path=search_path)
    if mpirun is None:
        raise SpecError(
            "launcher=mpirun: there is no mpirun on PATH where the trial starts. Load "
            "or install Open MPI 4 there (a module goes into prologue of the site).",
            code="no_mpirun",
        )

    answer = subprocess.run(
        [mpirun, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_PATIENCE_S,
    ).stdout
    if (found := _VERSION.search(answer)) is None or found[1] != _MAJOR:
        first = answer.strip().partition("\n")[0][:80] or "nothing"
        raise SpecError(
            f"launcher=mpirun: {mpirun} --version says {first!r}, and only the options "
            f"of Open MPI {_MAJOR} are known. Load Open MPI {_MAJOR}, or use launcher: "
            "per_node with a command that starts the ranks of its node.",
            code="other_mpirun",
        )

    return mpirun


def _options(process: LaunchedProcess, program: Sequence[str]) -> list[str]:
    """Return the options of ``mpirun``; see the manual of Open MPI 4.1, mpirun(1).

    Nothing of a batch system is read: its allocation is that of the node's job, not of
    the trial. No process is bound, since Open MPI would count the cores of the host
    from the first, for every trial alike.
    """
    slots = zip(process.hosts, process.devices_on_nodes, strict=True)
    hosts = ",".join(f"{host}:{count}" for host, count in slots)
    options = {
        "ras": "^slurm,tm,gridengine,lsf",
        "plm": "rsh",
        "plm_rsh_agent": " ".join([*program, "ask"]),
        "plm_rsh_no_tree_spawn": "1",
    }

    return [
        *(word for name, value in options.items() for word in ("--mca", name, value)),
        *("-np", str(process.world_size), "--host", hosts),
        *("--bind-to", "none", "--oversubscribe", "--leave-session-attached"),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
    ]


def _key() -> bytes:
    file, deadline_s = Path(os.environ[_KEY_FILE]), time.monotonic() + _PATIENCE_S
    while not file.exists() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    return file.read_bytes()


def _ask(host: str, words: Sequence[str]) -> int:
    address, port = json.loads(os.environ[_PLACES])[host]
    key, deadline_s = _key(), time.monotonic() + _PATIENCE_S

    waiting = None
    while waiting is None:
        try:
            waiting = Client((address, port), authkey=key)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)

    with waiting:
        waiting.send_bytes(" ".join(words).encode())
        return int(waiting.recv_bytes())


def _wait(host: str) -> int:
    address, port = json.loads(os.environ[_PLACES])[host]
    with Listener((address, port), authkey=_key()) as listener:
        asking = None
        while asking is None:  # until it is somebody who knows the key
            with suppress(AuthenticationError, EOFError, OSError):
                asking = listener.accept()

    with asking:
        status = subprocess.run(
            ["/bin/sh", "-c", asking.recv_bytes().decode()],
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode
        asking.send_bytes(str(status).encode())

    return status


if __name__ == "__main__":
    role, host, *words = sys.argv[1:]
    sys.exit(_wait(host) if role == "wait" else _ask(host, words))
