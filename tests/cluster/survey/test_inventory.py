"""What SLURM and PBS say they have, and the profile made of it.

No PBS was at hand: its answers follow published ones of PBS Professional 2022.1,
shortened, with entries made up where none was found (``Qlist``, GPUs as virtual nodes,
the server). The numbers that look like text are as published.
"""

import doctest
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sentences import refused

from scalelab.cluster.batch import pbs
from scalelab.cluster.batch.queue import survey
from scalelab.cluster.survey.inventory import NodeGroup
from scalelab.doctor import site_profile
from scalelab.doctor.site_profile import profile_text, write_profile
from scalelab.errors import ClusterError, SpecError
from scalelab.site.choice import find_site, read_site
from scalelab.site.node_settings import DeviceType

SINFO = """\
cpu*|up|2-00:00:00|100|128|257000|(null)
gpu|up|1-00:00:00|8|64|515000|gpu:a100:4(S:0-1),nvme:1
gpu|up|1-00:00:00|2|96|1031000|gpu:h100:8(S:0,1)
mig|up|30:00|1|32+|250000+|gpu:a100_1g.5gb:7
old|drain|infinite|20|24|64000|gpu:2
none|up|infinite|0|0|0|(null)
"""
CONFIG = "Configuration data as of now\nClusterName             = jewel\nBootTime = x\n"
PBSNODES = {
    "nodes": {
        "x3006c0s13b1n0": {
            "state": "free",
            "resources_available": {
                "host": "x3006c0s13b1n0",
                "gputype": "A100",
                "mem": "527672488kb",
                "ncpus": 64,
                "ngpus": 4,
                "Qlist": "gpu",
            },
        },
        "n3": {
            "resources_available": {"host": "n3", "ncpus": 2, "mem": "2gb", "ngpus": 0},
        },
        "n3[0]": {
            "resources_available": {"host": "n3", "ncpus": 4, "mem": "8gb", "ngpus": 1}
        },
        "n3[1]": {
            "state": "state-unknown,down",
            "resources_available": {"host": "n3", "ncpus": 4, "mem": "8gb", "ngpus": 1},
        },
        "own": {
            "queue": "special",
            "resources_available": {"ncpus": 8, "gpu_model": "h100", "ngpus": 2},
        },
        "empty": {"resources_available": {"host": "empty"}},
    }
}
QUEUES = {
    "Queue": {
        "gpu": {
            "queue_type": "Execution",
            "resources_max": {"nodect": 2, "walltime": "01:00:00"},
            "default_chunk": {"Qlist": "gpu"},
            "enabled": "True",
            "started": "True",
        },
        "special": {
            "queue_type": "Execution",
            "enabled": "True",
            "started": "True",
            "hasnodes": "True",
        },
        "run_next": {"queue_type": "Execution", "enabled": "False", "started": "False"},
        "route": {
            "queue_type": "Route",
            "route_destinations": "gpu,inner",
            "enabled": "True",
            "started": "True",
        },
        "inner": {
            "queue_type": "Route",
            "route_destinations": "special,route",
            "enabled": "True",
            "started": "True",
        },
        "away": {
            "queue_type": "Route",
            "route_destinations": "gpu,batch@elsewhere",
            "enabled": "True",
            "started": "True",
        },
        "R109": {
            "queue_type": "Execution",
            "enabled": "True",
            "started": "False",
        },
    }
}
# From pbs_rstat.c and published answers; a host's vnodes stand in one chunk.
RESERVATION = """\
Resv ID: R109.pbs-01
Reserve_Name = NULL
reserve_state = RESV_CONFIRMED
reserve_start = Mon Nov 23 07:54:47 2026
reserve_end = Mon Nov 23 07:57:17 2026
reserve_duration = 150
queue = R109
Resource_List.ncpus = 6
resv_nodes = (n3[0]:ncpus=1:mem=1gb+n3[1]:ncpus=1:ngpus=1)+(own:ncpus=2)+(own:ngpus=1)

"""
SERVER = {"Server": {"pbs-01.hsn": {"default_queue": "gpu", "server_state": "Active"}}}

Programs = Callable[..., None]


def test_examples() -> None:
    for module in (pbs, site_profile):
        assert doctest.testmod(module).failed == 0


@pytest.fixture
def slurm(programs: Programs) -> None:
    programs("sinfo", ("--exact", SINFO))
    programs("scontrol", ("show config", CONFIG))


@pytest.mark.usefixtures("slurm")
class TestSlurm:
    def test_partitions(self) -> None:
        found = survey()
        assert (found.scheduler, found.cluster_name) == ("slurm", "jewel")
        assert found.accounts == ()
        gpu = found.queue()
        assert gpu.name == "gpu"
        assert gpu.max_walltime_s == 86400
        assert gpu.groups == (
            NodeGroup(
                num_nodes=8,
                cores=64,
                gpus=4,
                memory_bytes=515000 * 2**20,
                gpu_type="a100",
            ),
            NodeGroup(
                num_nodes=2,
                cores=96,
                gpus=8,
                memory_bytes=1031000 * 2**20,
                gpu_type="h100",
            ),
        )
        mig = found.queue("mig").kinds[0]
        assert (mig.cores, mig.gpus, mig.gpu_type) == (32, 7, "a100_1g.5gb")
        assert not found.queue("old").is_open
        with pytest.raises(SpecError, match=r"no partition 'gpus' .* mean 'gpu'\?"):
            found.queue("gpus")

    def test_the_profile(self, programs: Programs) -> None:
        programs("sacctmgr", ("show user", "ml\n"), ("show assoc", "ml\nphysics\n"))
        found = survey()
        assert found.accounts == ("ml", "physics")
        text = profile_text(found, found.queue())
        assert text.splitlines() == [
            "# jewel, as slurm described itself.",
            "# Check it with: scalelab doctor --site NAME [--job]. All settings:",
            "# docs/clusters.md.",
            "# partition cpu: 100 x (128 cores, 251 GiB), at most 48h",
            "# partition mig: 1 x (32 cores, 244 GiB, 7 a100_1g.5gb GPUs), "
            "at most 30min",
            "# partition old: 20 x (24 cores, 62 GiB, 2 GPUs), closed",
            "",
            "scheduler: slurm",
            "partition: gpu  # 8 x (64 cores, 503 GiB, 4 a100 GPUs); "
            "2 x (96 cores, 1,007 GiB, 8 h100 GPUs)",
            "account: ml  # or: physics",
            "walltime: 4h  # at most 24h",
            "",
            "device_type: cuda  # what a rank runs on: a GPU (cuda) or a core (cpu)",
            "gpu_request: gres",
            "# Experiments choose, node_group: [a100, h100]; else the first.",
            "node_groups:",
            "  a100:  # 8 x (64 cores, 503 GiB, 4 a100 GPUs)",
            "    gpu_type: a100",
            "    gpus_per_node: 4",
            "    cores_per_node: 64",
            "    memory_per_node: 515000MiB",
            "    # nodes: 8  # at most",
            "  h100:  # 2 x (96 cores, 1,007 GiB, 8 h100 GPUs)",
            "    gpu_type: h100",
            "    gpus_per_node: 8",
            "    cores_per_node: 96",
            "    memory_per_node: 1031000MiB",
            "    # nodes: 2  # at most",
            "",
            "# prologue: [module load cuda]  # shell lines before anything starts",
            "# python: /shared/env/bin/python  # default: the one you sweep with",
            "# interface: ib0  # network interface of the nodes",
            "# provision: one_job  # all nodes in one job, granted together",
            "# driver_job: {walltime: 24h, partition: NAME}  # for sweep --detach",
        ]

    @pytest.mark.parametrize("name", ["gpu", "cpu", "mig", "old"])
    @pytest.mark.parametrize("kind", [None, DeviceType.CPU])
    def test_every_profile_is_a_site(
        self, tmp_path: Path, name: str, kind: DeviceType | None
    ) -> None:
        found = survey()
        queue = found.queue(name)
        text = profile_text(found, queue, device_type=kind)
        path = write_profile(text, str(tmp_path / "site.yaml"))
        site = read_site(path)
        assert site.partition == name
        assert [group.gpus_per_node for group in site.groups.values()] == [
            kind_of_nodes.gpus or kind_of_nodes.cores for kind_of_nodes in queue.kinds
        ]
        assert site.asks_for_gpus == (name != "cpu")
        uncommented = text.replace("# prologue", "prologue").replace(
            "# python", "python"
        )
        for setting in ("interface", "provision", "nodes", "driver_job", "account"):
            uncommented = uncommented.replace(f"# {setting}: ", f"{setting}: ")
        again = write_profile(uncommented, str(path), force=True)
        assert read_site(again).driver_job is not None


def test_pbs(programs: Programs, tmp_path: Path) -> None:
    programs("pbsnodes", ("-av -F json", json.dumps(PBSNODES)))
    programs("pbs_rstat", ("-f R109", RESERVATION))
    programs(
        "qstat", ("-Q -f", json.dumps(QUEUES)), ("-B -f -F json", json.dumps(SERVER))
    )
    found = survey()
    assert (found.scheduler, found.cluster_name) == ("pbs", "pbs-01")
    gpu = found.queue()
    assert (gpu.name, gpu.max_walltime_s) == ("gpu", 3600)
    polaris = NodeGroup(
        num_nodes=1, cores=64, gpus=4, memory_bytes=527672488 * 1024, gpu_type=None
    )
    by_gpu = NodeGroup(num_nodes=1, cores=10, gpus=2, memory_bytes=18 * 2**30)
    assert gpu.groups == (polaris, by_gpu)
    bound = NodeGroup(num_nodes=1, cores=8, gpus=2, gpu_type="h100")
    assert found.queue("special").groups == (bound,)
    queues = {queue.name: queue for queue in found.queues}
    closed = [name for name, queue in queues.items() if not queue.is_open]
    assert closed == ["run_next"]
    assert queues["route"].groups == (polaris, by_gpu, bound)
    assert queues["route"].routes_to == ("gpu", "inner")
    assert queues["inner"].groups == (bound, polaris, by_gpu)
    assert queues["away"].groups == (), "nothing is known of another server's nodes"
    part = NodeGroup(num_nodes=1, cores=2, gpus=1, memory_bytes=2**30)
    own = NodeGroup(num_nodes=1, cores=2, gpus=1, gpu_type="h100")
    assert queues["R109"].groups == (part, own)
    assert queues["R109"].max_walltime_s == 150
    assert [queue.num_away for queue in (gpu, queues["R109"])] == [1, 1]
    path = write_profile(profile_text(found, gpu), str(tmp_path / "site.yaml"))
    site = read_site(path)
    assert (site.scheduler, site.queue, site.walltime) == ("pbs", "gpu", 3600)
    assert (site.gpus_per_node, site.cores_per_node) == (4, 64)
    assert site.memory_per_node == 527672488 * 1024 // 2**20 * 2**20


class TestWhatIsNotThere:
    def test_a_batch_system(self, programs: Programs) -> None:
        with pytest.raises(ClusterError, match="Neither sinfo nor pbsnodes can be run"):
            survey()

    def test_an_answer(self, programs: Programs) -> None:
        programs("sinfo")
        with pytest.raises(ClusterError, match=r"^sinfo has no cluster here \("):
            survey()

    def test_a_configuration(self, programs: Programs, tmp_path: Path) -> None:
        programs("sinfo")
        lines = [
            "sinfo: error: resolve_ctls_from_dns_srv: Unknown host",
            "sinfo: error: fetch_config: DNS SRV lookup failed",
            "sinfo: fatal: Could not establish a configuration source",
        ]
        said = "\n".join(f"echo '{line}' >&2" for line in lines)
        (tmp_path / "programs" / "sinfo").write_text(f"#!/bin/sh\n{said}\nexit 1\n")
        with pytest.raises(ClusterError) as caught:
            survey()
        assert str(caught.value) == (
            "sinfo has no cluster here (resolve_ctls_from_dns_srv: Unknown host; "
            "fetch_config: DNS SRV lookup failed; Could not establish a configuration "
            "source). Run this on a login node of the cluster, or again once it "
            "answers there."
        )

    def test_json(self, programs: Programs) -> None:
        programs("pbsnodes")
        programs("qstat", ("-B", "Server: pbs\n"))
        with pytest.raises(ClusterError, match="qstat -B -f -F json said no JSON"):
            survey()

    def test_a_partition_with_nodes(self, programs: Programs) -> None:
        programs("sinfo", ("--exact", "none*|up|infinite|0|0|0|(null)\n"))
        programs("scontrol", ("show config", ""))
        found = survey()
        assert found.cluster_name == "slurm"
        with pytest.raises(ClusterError, match="no partition that is open"):
            found.queue()


def test_a_profile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = "scheduler: slurm\ndevice_type: cpu\ngpus_per_node: 4\n"
    path = write_profile(text, "mine")
    assert path == tmp_path / "scalelab" / "sites" / "mine.yaml"
    assert find_site("mine").name == "mine"
    with pytest.raises(SpecError, match=r"mine\.yaml exists\. .* with --force"):
        write_profile(text, "mine")
    assert write_profile(text.replace("4", "8"), "mine", force=True) == path
    assert find_site("mine").gpus_per_node == 8
    with pytest.raises(SpecError, match="device_type is missing"):
        write_profile("scheduler: slurm\n", "broken")
    (tmp_path / "file").touch()
    with refused("unwritable", "File exists"):
        write_profile(text, str(tmp_path / "file" / "x.yaml"))
