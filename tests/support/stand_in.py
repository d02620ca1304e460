"""What stands in for a training rank: small acts, chosen by the option ``act``."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from scalelab.inputs.outcome import Outcome
from scalelab.launch.progress import Reporter
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptResult, AttemptSpec

Progress = Callable[[int], None]
FOREVER_S = 600


def act(
    spec: AttemptSpec, identity: RankIdentity, rendezvous: str, progress: Progress
) -> AttemptResult | None:
    name = str(spec.trial.options["act"])
    return globals()[name](spec, identity, rendezvous, progress)


@contextmanager
def group(identity: RankIdentity, rendezvous: str) -> Iterator[None]:
    address = urlsplit(rendezvous)
    if address.scheme == "file":
        store = dist.FileStore(address.path, identity.world_size)
    else:
        store = dist.TCPStore(
            address.hostname, address.port, None, False, wait_for_workers=False
        )
    dist.init_process_group(
        "gloo",
        store=store,
        rank=identity.rank,
        world_size=identity.world_size,
        timeout=timedelta(seconds=FOREVER_S),
    )
    yield
    dist.barrier()


def completed(identity: RankIdentity, **measurements: int) -> AttemptResult | None:
    if identity.rank != 0:
        return None
    measured = {"num_steps": 50, **measurements}
    return AttemptResult(outcome=Outcome.COMPLETED, measurements=measured)


def is_culprit(spec: AttemptSpec, identity: RankIdentity) -> bool:
    return identity.rank == spec.trial.options.get("culprit", 1)


def leave_pid(spec: AttemptSpec, name: str, pid: int) -> None:
    file = Path(spec.directory) / f"{name}.pid"
    written = file.with_suffix(f".{os.getpid()}")  # two ranks may name one loader
    written.write_text(str(pid))
    written.rename(file)


def exchange_until(done: Callable[[int], bool], progress: Progress) -> None:
    step = 0
    while not done(step):
        dist.all_reduce(torch.ones(1))
        step += 1
        progress(step)
        time.sleep(0.005)


def meet(
    spec: AttemptSpec, identity: RankIdentity, rendezvous: str, progress: Reporter
) -> AttemptResult:
    with group(identity, rendezvous):
        progress(0)
    print(f"rank {identity.rank} has met the others")
    return completed(identity)


def train(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """Train for ever, and say who this is after the first steps."""
    with group(identity, rendezvous):
        exchange_until(lambda step: step == 3, progress)
        leave_pid(spec, f"rank-{identity.rank}", os.getpid())
        exchange_until(lambda step: False, progress)


def hold_the_interpreter(
    spec: Any, identity: Any, rendezvous: Any, progress: Any
) -> AttemptResult:
    """Sleep in a C function that keeps the GIL, as a badly written extension may."""
    progress(1)
    ctypes.PyDLL(None).usleep(int(spec.trial.options["held_s"] * 1e6))
    progress(2)
    return completed(identity)


def raise_error(
    spec: AttemptSpec, identity: RankIdentity, rendezvous: str, progress: Reporter
) -> None:
    with group(identity, rendezvous):
        if is_culprit(spec, identity):
            raise ValueError("the loss is not finite")
        exchange_until(lambda step: False, progress)


def raise_late_under_echo(
    spec: Any, identity: Any, rendezvous: Any, progress: Any
) -> Any:
    """The culprit's connections break well before it can say why."""
    with group(identity, rendezvous):
        if is_culprit(spec, identity):
            dist.destroy_process_group()
            time.sleep(0.3)
            raise ValueError("the cause")
        exchange_until(lambda step: False, progress)


def exit_silently(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    with group(identity, rendezvous):
        if is_culprit(spec, identity):
            print("about to leave", flush=True)
            os._exit(int(spec.trial.options.get("status", 0)))
        exchange_until(lambda step: False, progress)


def die_by_signal(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    print("about to die", flush=True)
    os.kill(os.getpid(), int(spec.trial.options["signal"]))
    time.sleep(FOREVER_S)


def abort_without_memory(
    spec: Any, identity: Any, rendezvous: Any, progress: Any
) -> Any:
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.kill(os.getpid(), signal.SIGABRT)


def return_nothing(
    spec: AttemptSpec, identity: RankIdentity, rendezvous: str, progress: Reporter
) -> None:
    return None


def return_tensor(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    return completed(identity, num_steps=torch.ones(1))


def return_much(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    return completed(identity, versions="x" * 300_000)


def allocate_too_much(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    limit = 64 << 30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with group(identity, rendezvous):
        if is_culprit(spec, identity):
            torch.empty(limit, dtype=torch.uint8)
        exchange_until(lambda step: False, progress)


def eat_memory(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    if is_culprit(spec, identity):
        torch.ones(1 << 30)
    time.sleep(FOREVER_S)


def hang(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    with group(identity, rendezvous):
        exchange_until(lambda step: step == 20, progress)
        if is_culprit(spec, identity):
            hang_here()
        exchange_until(lambda step: False, progress)


def start_slowly(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """Say nothing for a while, as an import from a busy disk does, then train."""
    time.sleep(float(spec.trial.options["import_s"]))
    with group(identity, rendezvous):
        exchange_until(lambda step: step == 20, progress)
    return completed(identity)


def hang_here() -> Any:
    time.sleep(FOREVER_S)


def fall_behind(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """The culprit hangs while the other, which waits for nobody, goes on."""
    if is_culprit(spec, identity):
        progress(1)
        hang_here()
    for step in range(1, 1_000_000):
        progress(step)
        time.sleep(0.01)


def wait_for_slow_rank(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """Rank 0 is busy for longer than the stall limit, but says so."""
    with group(identity, rendezvous):
        if identity.rank == 0:
            for _ in range(30):
                time.sleep(0.1)
                progress(0)
    return completed(identity)


def ignore_sigterm(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_pid(spec, f"rank-{identity.rank}", os.getpid())
    time.sleep(FOREVER_S)


class Slow(Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        time.sleep(FOREVER_S if index > 3 else 0)
        return index


def load(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    loader = iter(DataLoader(Slow(), num_workers=2))
    next(loader)
    for number, worker in enumerate(loader._workers):
        leave_pid(spec, f"loader-{number}", worker.pid)
    leave_pid(spec, f"rank-{identity.rank}", os.getpid())
    time.sleep(FOREVER_S)


def leave_processes_behind(
    spec: Any, identity: Any, rendezvous: Any, progress: Any
) -> Any:
    """One child in the rank's group, one that has left group, session and parent."""
    sleep = "import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", sleep])
    leave_pid(spec, "child", child.pid)
    daemon = (
        "import os, sys\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "open(sys.argv[1] + '.tmp', 'w').write(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.tmp', sys.argv[1])\n"
        f"{sleep}"
    )
    file = Path(spec.directory) / "daemon.pid"
    subprocess.run([sys.executable, "-c", daemon, str(file)], check=True)
    while not file.exists():
        time.sleep(0.01)
    return completed(identity)


def fork_in_thread(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """A process forked by a thread that ends must live on."""
    pids = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(0.3)
            os._exit(7)
        pids.append(pid)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    _, status = os.waitpid(pids[0], 0)
    return completed(identity, num_parameters=os.waitstatus_to_exitcode(status))


def describe(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    """Report, in the columns there are, how the process was set up."""
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death_signal), 0, 0, 0)
    facts = [
        f"threads={os.environ['OMP_NUM_THREADS']}",
        f"affinity={sorted(os.sched_getaffinity(0))}",
        f"leads_group={os.getpgid(0) == os.getpid()}",
        f"death_signal={death_signal.value}",
        f"parent={os.getppid()}",
        f"pid={os.getpid()}",
        f"ppid_status={Path(f'/proc/{os.getppid()}/status').read_text()}",
        f"oom_score={Path('/proc/self/oom_score_adj').read_text().strip()}",
        f"session={os.getsid(0)}",
        f"cuda_visible={os.environ['CUDA_VISIBLE_DEVICES']}",
        f"gloo_interface={os.environ['GLOO_SOCKET_IFNAME']}",
        f"omp={os.environ['OMP_NUM_THREADS']}",
        f"identity={identity}",
        f"is_fork={'scalelab.launch.ranks.server' not in sys.modules}",
        f"argv={sys.argv}",
        f"code={[entry for entry in sys.path if 'code' in entry]}",
        f"descriptors={sorted(os.listdir('/proc/self/fd'))}",
    ]
    return completed(identity, versions="\n".join(facts))


def version_of_module(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    import preloaded

    return completed(identity, num_parameters=preloaded.VERSION)


def fill_the_log(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    print("x" * 10_000, flush=True)
    return completed(identity)


def remove_directory(spec: Any, identity: Any, rendezvous: Any, progress: Any) -> Any:
    import shutil

    shutil.rmtree(spec.directory)
    return completed(identity)
