"""The driver's end and a node's, without a batch system between them."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scalelab.cluster.hub import HubCluster
from scalelab.cluster.node_options import NodeOptions, write_private
from scalelab.errors import ClusterError, StoreError
from scalelab.kinds.batch_systems import BATCH_SYSTEMS, held_allocation
from scalelab.site.choice import site_of
from scalelab.site.job_script import node_command, options_file, script_file

OPTIONS, NODE_SCRIPT = options_file(None), script_file(None)
SITE = site_of(
    {
        "scheduler": "slurm",
        "device_type": "cpu",
        "gpus_per_node": 3,
        "driver_interface": "lo",
        "interface": "lo",
    }
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubCluster]:
    with HubCluster(SITE, run=tmp_path, max_nodes=1, preload=("json",)) as hub:
        yield hub


@pytest.mark.slow
def test_a_node_joins_offers_its_devices_and_ends_when_it_is_told(
    hub: HubCluster, tmp_path: Path
) -> None:
    directory = tmp_path / "cluster"
    command = node_command(SITE, directory, "vit-1")
    node = subprocess.Popen(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    try:
        hub.client.wait_for_workers(1, timeout=60)
        (found,) = hub.nodes()
        assert found.name.endswith("/vit-1")
        assert found.job == "vit-1"
        assert len(found.device_ids) == 3
        assert found.group is None
        hub.wait_for(hub.close_workers([found.address]), 10)
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.communicate()


def test_files_that_give_access_are_private_and_go_with_the_driver(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "cluster"
    with HubCluster(SITE, run=tmp_path, max_nodes=1) as hub:
        options = NodeOptions.read(directory / OPTIONS)
        assert options.scheduler == hub.address
        assert options.num_devices == 3
        assert options.interface == "lo"
        modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
        assert modes == dict.fromkeys(
            ("ca.pem", "cert.pem", "key.pem", OPTIONS, NODE_SCRIPT), 0o600
        )
        assert hub.dashboard_link.startswith("http://127.0.0.1:")
    assert [path.name for path in directory.iterdir()] == [NODE_SCRIPT]


def test_each_node_group_has_files_of_its_own(tmp_path: Path) -> None:
    groups = {"big": {"gpus_per_node": 4}, "small": {"python": "/small/python"}}
    site = site_of({**SITE.model_dump(exclude_unset=True), "node_groups": groups})
    directory = tmp_path / "cluster"
    with HubCluster(site, run=tmp_path, max_nodes=1):
        big, small = (
            NodeOptions.read(directory / f"nodes-{name}.json") for name in groups
        )
        assert (big.group, big.num_devices) == ("big", 4)
        assert (small.group, small.num_devices) == ("small", 3)
        assert "/small/python" in (directory / "node-small.sh").read_text()
    left = sorted(path.name for path in directory.iterdir())
    assert left == ["node-big.sh", "node-small.sh"]


@pytest.mark.slow
def test_a_node_that_cannot_join_says_why(tmp_path: Path) -> None:
    with HubCluster(SITE, run=tmp_path, max_nodes=1) as hub:
        options = tmp_path / "cluster" / OPTIONS
        values = json.loads(options.read_text())
        values["interface"] = "ib7"
        options.write_text(json.dumps(values))
        command = node_command(SITE, options.parent, "vit-1")
        node = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert node.returncode == 1
        assert "cannot join the sweep" in node.stderr
        assert "no network interface 'ib7'" in node.stderr
        assert hub.nodes() == []


def test_an_interface_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    site = SITE.model_copy(update={"driver_interface": "ib7"})
    with (
        pytest.raises(ClusterError, match="no network interface 'ib7'"),
        HubCluster(site, run=tmp_path, max_nodes=1),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with (
        pytest.raises(StoreError, match=r"cluster cannot be written: File exists"),
        HubCluster(SITE, run=tmp_path / "run", max_nodes=1),
    ):
        pass
    (tmp_path / OPTIONS).mkdir()
    with pytest.raises(StoreError, match=rf"{OPTIONS} cannot be written: "):
        write_private(tmp_path / OPTIONS, "{}")


def test_the_allocation_is_the_job_s(tmp_path: Path) -> None:
    nodefile = tmp_path / "nodes"
    nodefile.write_text("n1\nn1\nn2\n")
    pbs = {"PBS_JOBID": "5.head", "PBS_NODEFILE": str(nodefile)}
    assert held_allocation(pbs) == (BATCH_SYSTEMS["pbs"], "job-5", 2)
    assert held_allocation({"SLURM_JOB_ID": "7"})[1:] == ("job-7", 1)
    with pytest.raises(ClusterError, match="this process runs in no batch job"):
        held_allocation({})
