from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from scalelab.errors import LaunchError
from scalelab.launch.progress import ProgressBoard
from scalelab.launch.ranks import server_process
from scalelab.launch.ranks.server_process import RankServers, server_environment


def test_environment_keeps_the_users_and_drops_the_launchers() -> None:
    inherited = {
        "HOME": "/home/me",
        "SLURM_JOB_ID": "7",
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SLURM_PROCID": "0",
        "PMIX_RANK": "0",
        "OMPI_COMM_WORLD_RANK": "0",
        "RANK": "0",
        "MASTER_ADDR": "login",
        "PYTHONPATH": "/old",
    }
    environment = server_environment(inherited, ("/new",), Path("/scratch"))
    assert environment["HOME"] == "/home/me"
    assert environment["SLURM_JOB_ID"] == "7"
    assert environment["PYTHONPATH"] == f"/new{os.pathsep}/old"
    dropped = {"SLURM_CPU_BIND", "SLURM_PROCID", "PMIX_RANK", "RANK", "MASTER_ADDR"}
    assert not dropped & set(environment)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert server_environment({}, (), Path("/scratch"))["PYTHONPATH"] == ""


def test_server_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('a broken torch')")
    servers = RankServers((), (str(tmp_path),), tmp_path, "torch")
    with pytest.raises(
        LaunchError,
        match=r"The rank server did not start \(it ended\): .*ImportError: a broken "
        rf"torch\. Run {sys.executable} -c 'import torch' on that node\.",
    ):
        servers.current()
    servers.close()


def test_server_that_is_not_ready_in_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_READY_PATIENCE_S", 0.01)
    monkeypatch.setattr(server_process, "_EXIT_PATIENCE_S", 0.01)
    servers = RankServers((), (), tmp_path)
    with pytest.raises(LaunchError, match=r"timed out.*its log is empty"):
        servers.current()
    servers.close()


@pytest.mark.slow
def test_request_to_a_dead_server_is_an_error(tmp_path: Path) -> None:
    servers = RankServers((), (), tmp_path)
    server = servers.current()
    os.kill(server.pid, signal.SIGKILL)
    assert "ended with status -9" in server.explain_death()
    board = ProgressBoard(1)
    with pytest.raises(
        LaunchError, match=rf"The rank server \(process {server.pid}\) has ended: "
    ):
        server.launch((), board)
    board.close()
    servers.close()
