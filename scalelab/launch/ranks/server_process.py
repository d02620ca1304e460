"""The rank servers of a node, started and watched by its agent without torch."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from scalelab.errors import LaunchError
from scalelab.inputs.plain_files import open_to_append
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.protocol import (
    NODE_DIRECTORY,
    ProcessRequest,
    receive,
    send,
    to_memory,
)
from scalelab.launch.verdict import last_lines

# Importing torch from a busy network file system has been seen to take minutes.
_READY_PATIENCE_S = 600.0
_EXIT_PATIENCE_S = 10.0
# Prefixes of the variables that tell programs that they are a task of an MPI or
# torchrun launch, which a rank is not. Batch systems have further ones.
_FOREIGN_LAUNCH = ("PMI", "OMPI_", "TORCHELASTIC_")
_FOREIGN_NAMES = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}


def server_environment(
    inherited: Mapping[str, str], search_path: tuple[str, ...], scratch: Path
) -> dict[str, str]:
    """Return the environment of a rank server."""
    of_tasks = (prefix for system in BATCH_SYSTEMS for prefix in system.task_prefixes)
    foreign = (*_FOREIGN_LAUNCH, *of_tasks)
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(foreign) and name not in _FOREIGN_NAMES
    }
    paths = (*search_path, kept.get("PYTHONPATH"))

    return {
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        **kept,
        NODE_DIRECTORY: str(scratch),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        # A pool of OpenBLAS or OpenMP threads would make the server unfit to fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # Nor may pyarrow's allocator, which scikit-learn imports through pandas.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        # A module that asks for CUDA while it is imported must not initialise it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


class ServerProcess:
    """A rank server in a process of its own, which has imported its modules.

    The server dies with the *thread* that makes this object; see :class:`RankServers`.
    """

    def __init__(
        self,
        preload: tuple[str, ...],
        search_path: tuple[str, ...],
        log: Path,
        entry_module: str | None,
    ) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "scalelab.launch.ranks.server"]

        command += [str(far.fileno()), str(os.getpid()), entry_module or ""]
        with far, os.fdopen(open_to_append(log), "ab") as output:
            self._process = subprocess.Popen(
                [*command, *preload],
                pass_fds=(far.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=server_environment(os.environ, search_path, log.parent),
            )

        self.pid = self._process.pid
        self.descriptor = os.pidfd_open(self.pid)
        self._control.settimeout(_READY_PATIENCE_S)

        try:
            message, descriptors = receive(self._control)
        except OSError as error:
            message, descriptors = {"kind": "late", "error": str(error)}, []

        self._control.settimeout(None)
        if not descriptors:
            self.close()
            module = entry_module or "scalelab.launch.ranks.server"
            raise LaunchError(
                f"The rank server did not start ({message or 'it ended'}): "
                f"{last_lines(log) or 'its log is empty'}. Run "
                f"{sys.executable} -c 'import {module}' on that node."
            )

        with os.fdopen(descriptors[0], "rb") as file:
            file.seek(0)
            self._files: dict[str, int] = json.load(file)

    @property
    def is_current(self) -> bool:
        """Whether it runs, and the source files of its modules are unchanged."""
        try:
            known = self._files.items()
            is_same = all(os.stat(path).st_mtime_ns == at_ns for path, at_ns in known)
        except OSError:
            return False
        return is_same and self._process.poll() is None

    def launch(
        self, processes: Sequence[ProcessRequest], board: ProgressBoard
    ) -> socket.socket:
        """Ask for the processes of one attempt; return the attempt's channel."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        content = to_memory(processes)

        descriptors = [far.fileno(), content, board.descriptor]
        try:
            with self._lock:
                send(self._control, {"kind": "launch"}, descriptors)
        except OSError as error:
            near.close()
            raise LaunchError(
                f"The rank server (process {self.pid}) has ended: {error}."
            ) from error
        finally:
            far.close()
            os.close(content)

        return near

    def explain_death(self) -> str:
        """Return a clause that says how the server ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_PATIENCE_S)
        status, last_words = self._process.returncode, last_lines(self._log)
        death = f"the rank server (process {self.pid}) ended with status {status}"
        return f"{death}: {last_words}" if last_words else death

    def retire(self) -> None:
        """Tell the server to end once its last process has ended."""
        with self._lock:
            self._control.close()

    def close(self) -> None:
        """End the server and every process that it has started."""
        self.retire()
        try:
            self._process.wait(_EXIT_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self.descriptor)


class RankServers:
    """The rank servers of a node, of which the latest has modules that are up to date.

    All servers are started by one thread, which lives as long as this object: the
    kernel kills a server when the thread that started it ends. A server whose preloaded
    files have changed is replaced; it ends when its last rank has ended. Without an
    ``entry_module``, which has what ranks call, it starts no ranks.
    """

    def __init__(
        self,
        preload: tuple[str, ...],
        search_path: tuple[str, ...],
        directory: Path,
        entry_module: str | None = None,
    ) -> None:
        self._start = partial(
            ServerProcess,
            preload,
            search_path,
            directory / "rank-server.log",
            entry_module=entry_module,
        )

        self._lock = threading.Lock()
        self._servers: list[ServerProcess] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scalelab-servers")

    def current(self) -> ServerProcess:
        """Return a server that runs and is up to date; start one if there is none."""
        with self._lock:
            if self._servers:
                server = self._servers[-1]
                if server.is_current:
                    return server
                server.retire()

            try:
                server = self._thread.submit(self._start).result()
            except (BlockingIOError, RuntimeError) as error:
                raise LaunchError(
                    f"The rank server did not start: {error}. `ulimit -u` says how "
                    "many processes and threads you may have on that host."
                ) from error

            self._servers.append(server)
            return server

    def close(self) -> None:
        """End all servers."""
        with self._lock:
            for server in self._servers:
                server.close()
            self._servers.clear()
            self._thread.shutdown()
