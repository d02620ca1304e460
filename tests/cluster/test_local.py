import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from urllib.error import URLError
from urllib.request import urlopen

import dask
import psutil
import pytest
from dask.utils import parse_timedelta
from distributed import Client

from scalelab.cluster.local import LocalNodes, local_nodes
from scalelab.cluster.nodes import Node
from scalelab.cluster.watch import NodeJoined, NodeLeft, NodeWatch
from scalelab.errors import ClusterError
from scalelab.site.choice import site_of
from scalelab.site.profile import LocalSite


@pytest.fixture(scope="module")
def nodes() -> Iterator[LocalNodes]:
    with LocalNodes(2, 1) as nodes:
        yield nodes


def worker_pids(nodes: LocalNodes) -> dict[str, int]:
    return {address: pid for address, pid in nodes.client.run(os.getpid).items()}


def gone_by(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(psutil.pid_exists, pids))


def test_nodes_say_what_they_are(nodes: LocalNodes) -> None:
    found = sorted(nodes.nodes(), key=lambda node: node.name)
    assert [node.name for node in found] == ["node-0", "node-1"]
    assert [len(node.device_ids) for node in found] == [1, 1]
    assert nodes.expected_devices == {None: (1, 1)}
    cores = {core for node in found for core in node.device_ids}
    assert len(cores) == min(2, len(os.sched_getaffinity(0)))
    for node in found:
        assert node.num_cores == len(os.sched_getaffinity(0))
        assert node.memory_bytes == psutil.virtual_memory().total
        assert node.address.startswith("tls://127.0.0.1:")


def test_everything_listens_on_the_loopback_interface_only(nodes: LocalNodes) -> None:
    nodes.nodes()
    ours = [psutil.Process(), *map(psutil.Process, worker_pids(nodes).values())]
    ours += [child for each in ours[1:] for child in each.children(recursive=True)]
    listeners = {
        (each.pid, connection.laddr.ip, connection.laddr.port)
        for each in ours
        for connection in each.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address for _, address, _ in listeners} == {"127.0.0.1"}
    per_worker = [
        sum(listener[0] == pid for listener in listeners)
        for pid in worker_pids(nodes).values()
    ]
    assert per_worker == [1, 1], "a worker serves Dask and nothing else"
    assert nodes.dashboard_link.startswith("http://127.0.0.1:")


@pytest.mark.slow
def test_a_node_has_joined_when_it_can_start_ranks(tmp_path: Path) -> None:
    (tmp_path / "slow_to_load.py").write_text(
        "import pathlib, time\n"
        "time.sleep(4)\n"
        "pathlib.Path(__file__).with_name('loaded').touch()\n"
    )
    with LocalNodes(
        1, 1, preload=("slow_to_load",), search_path=(str(tmp_path),)
    ) as nodes:
        assert len(nodes.nodes()) == 1
        assert (tmp_path / "loaded").exists()


@pytest.mark.slow
def test_a_site_may_want_no_dashboard(tmp_path: Path) -> None:
    site = site_of({"device_type": "cpu", "gpus_per_node": 1, "dashboard": False})
    assert isinstance(site, LocalSite)
    with local_nodes(site, run=tmp_path, max_nodes=1) as nodes:
        assert nodes.dashboard_link is None
        port = nodes.client.scheduler_info()["services"].get("dashboard")
        for page in ("status", "info/main/workers.html", "json/counts.json"):
            with pytest.raises(URLError):
                urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10)


def test_a_client_without_the_credentials_is_refused(nodes: LocalNodes) -> None:
    address = nodes.client.scheduler.address
    with pytest.raises((OSError, TypeError, RuntimeError)):
        Client(address.replace("tls://", "tcp://"), timeout=1)
    with pytest.raises((OSError, TypeError, RuntimeError)):
        Client(address, timeout=1)


def test_workers_load_no_torch_and_leave_the_terminal_alone(nodes: LocalNodes) -> None:
    has_torch = nodes.client.run(lambda: "torch" in __import__("sys").modules)
    assert not any(has_torch.values())
    sessions = {os.getsid(pid) for pid in worker_pids(nodes).values()}
    assert os.getsid(0) not in sessions


@pytest.mark.slow
def test_a_worker_that_dies_is_missed_and_comes_back(nodes: LocalNodes) -> None:
    heard: SimpleQueue[NodeJoined | NodeLeft] = SimpleQueue()
    with NodeWatch(nodes.client, heard.put):
        address, pid = next(iter(worker_pids(nodes).items()))
        name = next(node.name for node in nodes.nodes() if node.address == address)
        os.kill(pid, signal.SIGKILL)
        assert heard.get(timeout=60) == NodeLeft(address)
        joined = heard.get(timeout=60)
    assert isinstance(joined, NodeJoined)
    assert isinstance(joined.node, Node)
    assert joined.node.name == name
    assert joined.node.address != address


def test_dask_never_gives_up_a_node_that_is_restarting(nodes: LocalNodes) -> None:
    # Checked as a setting: it bites when two losses are just its length apart.
    setting = dask.config.get("distributed.deploy.lost-worker-timeout")
    assert parse_timedelta(setting) > 7 * 86_400


def test_a_cluster_that_cannot_start_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise OSError("no port is left")

    monkeypatch.setattr("scalelab.cluster.dask_nodes.SpecCluster", refuse)
    with (
        pytest.raises(
            ClusterError, match=r"local cluster of 1 nodes did not start: .*no port"
        ),
        LocalNodes(1, 1),
    ):
        pass


SCRIPT = """
import os, signal, sys, time
from scalelab.cluster.local import LocalNodes, local_nodes

def main():
    with LocalNodes(2, 1) as nodes:
        pids = list(nodes.client.run(os.getpid).values())
        print(*pids, flush=True)
        if sys.argv[1] == "wait":
            time.sleep(60)
        os.kill(pids[0], signal.SIGKILL)
        while len(nodes.nodes()) < 2:
            time.sleep(0.05)
        print(*nodes.client.run(os.getpid).values(), flush=True)

if __name__ == "__main__":
    main()
"""


def start(script: Path, mode: str) -> subprocess.Popen[str]:
    home = script.parent / "home"
    home.mkdir()
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOME": str(home), "TMPDIR": str(script.parent)},
    )


@pytest.mark.slow
def test_starting_losing_a_worker_and_closing_say_and_leave_nothing(
    tmp_path: Path,
) -> None:
    process = start(tmp_path / "script.py", "lose a worker")
    output, errors = process.communicate(timeout=100)
    assert errors == ""
    assert process.returncode == 0
    pids = [int(pid) for pid in output.split()]
    assert len(pids) == 4
    assert gone_by(pids, 60)
    assert list((tmp_path / "home").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "script.py"]


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process(tmp_path: Path) -> None:
    process = start(tmp_path / "script.py", "wait")
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    pids = workers + [
        child.pid
        for worker in workers
        for child in psutil.Process(worker).children(recursive=True)
    ]
    process.kill()
    process.communicate(timeout=60)
    assert len(pids) >= 2
    assert gone_by(pids, 60)
