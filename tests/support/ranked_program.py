"""A program that finds its rank as its launcher's users do, meets the others, trains.

Called as ``ranked_program.py LAUNCHER FAULT``. It needs the standard library alone; MPI
is called in the library itself. FAULT is what the last rank does after ten steps, or
all of them that wait for no other; after "short" all end by themselves.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NUMBERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "jax": ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    "per_node": ("MY_RANK", "MY_SIZE"),
    "none": ("MY_RANK", "MY_SIZE"),
}
WITH_FREE_PORT = ("srun", "jax", "per_node", "none")
Place = tuple[str, int]
KEPT: list[socket.socket] = []


def start_ranks(launcher: str) -> int:
    """Start the ranks of this node, as a launcher inside the command does."""
    if launcher == "per_node":
        each = int(os.environ["PET_NPROC_PER_NODE"])
        first = int(os.environ["PET_NODE_RANK"]) * each
        size = int(os.environ["PET_NNODES"]) * each
    else:
        each = size = int(os.environ["SCALELAB_GPUS_PER_NODE"])
        first = 0
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "MY_RANK": str(first + number), "MY_SIZE": str(size)},
        )
        for number in range(each)
    ]
    while None in (ended := [rank.poll() for rank in ranks]) and not any(ended):
        time.sleep(0.01)
    for rank in ranks:  # one that failed ends the others
        rank.terminate()
    return max(abs(status or 0) for status in ended)


def meet_at(place: Place, rank: int, size: int) -> None:
    """Have all ranks connect to rank 0, which listens there, and stay connected."""
    if rank == 0:
        with socket.create_server(place) as listener:
            KEPT.extend(listener.accept()[0] for _ in range(size - 1))
    else:
        connect(place)


def connect(place: Place) -> None:
    for _ in range(1000):
        try:
            KEPT.append(socket.create_connection(place))
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
    raise SystemExit(f"nobody listens at {place}")


def free_place(rank: int) -> Place:
    """Return a place of rank 0's choice: the store listens where torch's ranks meet."""
    file = Path(os.environ["SCALELAB_TRIAL_DIR"], "place")
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        file.with_suffix(".tmp").write_text(str(port))
        file.with_suffix(".tmp").rename(file)
    while not file.exists():
        time.sleep(0.01)
    return "127.0.0.1", int(file.read_text())


def with_tf_config() -> tuple[int, int]:
    """Serve on the port of this task, reach all others, and return rank and size."""
    config = json.loads(os.environ["TF_CONFIG"])
    roles = ("chief", "ps", "worker")
    tasks = [
        (role, index)
        for role in roles
        for index in range(len(config["cluster"].get(role, ())))
    ]
    places = []
    for role, index in tasks:
        host, _, port = config["cluster"][role][index].rpartition(":")
        places.append((host, int(port)))
    rank = tasks.index((config["task"]["type"], config["task"]["index"]))
    # A trial's ports are held for its tasks; those of a job are not.
    is_trial = "SCALELAB_TRIAL_ID" in os.environ
    assert (os.environ.get("TF_GRPC_REUSE_PORT") == "true") is is_trial
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(places[rank])
    listener.listen(64)
    for place in places:
        connect(place)
    KEPT.extend([listener, *(listener.accept()[0] for _ in places)])
    if config["task"]["type"] == "ps":
        time.sleep(600)  # such servers never end by themselves
    return rank, len(tasks)


def with_mpi() -> tuple[int, int, Callable[[], None]]:
    """Initialise MPI; return rank and size as it says them, and a barrier."""
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    world = ctypes.addressof(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))
    comm = ctypes.c_void_p(world)
    rank, size = ctypes.c_int(), ctypes.c_int()
    mpi.MPI_Comm_rank(comm, ctypes.byref(rank))
    mpi.MPI_Comm_size(comm, ctypes.byref(size))
    return rank.value, size.value, lambda: mpi.MPI_Barrier(comm)


def identity(launcher: str) -> tuple[int, int, Callable[[], None]]:
    """Return rank and size, having met the others, and what waits for them."""
    if launcher in ("mpirun", "MPI_Init"):
        return with_mpi()
    if launcher == "tf_config":
        return *with_tf_config(), lambda: None
    rank, size = (int(os.environ[name]) for name in NUMBERS[launcher])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    meet_at(place if launcher in WITH_FREE_PORT else free_place(rank), rank, size)
    return rank, size, lambda: None


def misbehave(fault: str) -> None:
    if fault == "raises":
        raise ValueError("bad luck")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "eats":
        bytearray(1 << 62)
    if fault == "hangs":
        time.sleep(600)


def steps(fault: str, is_faulty: bool) -> Iterator[int]:
    for step in range(1, 21 if fault == "short" else 100_000):
        time.sleep(0.002)
        if step == 10 and is_faulty:
            misbehave(fault)
        yield step


def main() -> None:
    launcher, fault = sys.argv[1:]
    if launcher in ("per_node", "none") and "MY_RANK" not in os.environ:
        sys.exit(start_ranks(launcher))
    rank, size, barrier = identity(launcher)
    known = {
        "pid": os.getpid(),
        "size": size,
        "cores": sorted(os.sched_getaffinity(0)),
        "host": socket.gethostname(),
        "ports": os.environ.get("TF_CONFIG", os.environ.get("MASTER_PORT")),
    }
    folder = Path(os.environ["SCALELAB_TRIAL_DIR"])
    file = folder / f"rank-{rank}.json"
    file.with_suffix(".tmp").write_text(json.dumps(known))
    file.with_suffix(".tmp").rename(file)
    # Those of tf_config have met already, and its servers say nothing.
    while launcher != "tf_config" and len([*folder.glob("rank-*.json")]) < size:
        time.sleep(0.01)
    waits_for_none = fault == "hangs" and launcher != "mpirun"
    for step in steps(fault, rank == size - 1 or waits_for_none):
        barrier()
        print(f"step {step} loss {1 / step}", flush=True)
    if launcher == "mpirun":
        ctypes.CDLL("libmpi.so.40").MPI_Finalize()


if __name__ == "__main__":
    main()
