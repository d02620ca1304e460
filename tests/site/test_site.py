import os
from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.inputs.document import parse_document
from scalelab.inputs.links import Link
from scalelab.kinds.batch_systems import BATCH_SYSTEMS
from scalelab.site.choice import available_sites, find_site, lasting_name, site_of
from scalelab.site.profile import LocalSite, Site, num_cores, num_visible_gpus

SLURM = """
scheduler: slurm
device_type: cuda
gpus_per_node: 4
nodes: 16
partition: gpu
walltime: 4h
memory_per_node: 64GB
directives: [--mail-type=END, --gres-flags=enforce-binding]
prologue: [module load cuda]
"""

PBS = """
scheduler: pbs
device_type: cuda
gpus_per_node: 4
queue: gpu
directives: ["-m abe"]
"""


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scalelab" / "sites"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


def site(text: str) -> Site:
    return site_of(parse_document(text, source="site"))


def test_the_local_site_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    local = LocalSite()

    assert local.scheduler == "local"
    assert local.device_type == "cpu"
    assert local.num_nodes == 1
    assert local.devices_per_node == local.num_devices == num_cores()
    assert num_cores() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("visible", "num_gpus"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1", 2), ("GPU-a,GPU-b", 2), ("0,-1,1", 1)],
)
def test_visible_gpus_are_counted_as_cuda_does(
    monkeypatch: pytest.MonkeyPatch, visible: str, num_gpus: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = [Path("/dev/nvidia0"), Path("/dev/nvidia1"), Path("/dev/nvidiactl")]
    monkeypatch.setattr(Path, "glob", lambda *_: iter(devices))

    assert num_visible_gpus() == num_gpus


def test_a_gpu_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(Path, "glob", lambda *_: iter([Path("/dev/nvidia0")]))

    assert LocalSite().device_type == "cuda"
    assert LocalSite().devices_per_node == 1


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    elsewhere = site_of({"device_type": "cuda"})

    with refused("no_gpu_visible", "device_type=cuda"):
        _ = elsewhere.devices_per_node


def test_nodes_of_a_local_site_share_the_machine() -> None:
    two = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 2})

    assert two.num_devices == 4


def test_a_profile_is_found_by_name(sites: Path) -> None:
    (sites / "big.yaml").write_text(SLURM)
    found = find_site("big")

    assert found.name == "big"
    assert found.walltime == 4 * 3600
    assert found.memory_per_node == 64 * 10**9
    assert found.num_devices == 64
    assert found.batch_system is BATCH_SYSTEMS["slurm"]
    assert list(available_sites()) == ["big"]


def test_a_profile_is_found_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: other\ngpus_per_node: 2\ndevice_type: cpu")

    assert find_site(str(path)).name == "other"


def test_an_unknown_name_lists_the_known_ones(sites: Path) -> None:
    (sites / "big.yaml").write_text(SLURM)

    with refused("unknown_site", "'bigg'", "'big'", "big, local"):
        find_site("bigg")


def test_local_needs_no_profile_but_may_have_one(sites: Path) -> None:
    assert find_site("local") == LocalSite()

    (sites / "local.yaml").write_text("device_type: cpu\ngpus_per_node: 7")
    assert find_site("local").gpus_per_node == 7


@pytest.mark.parametrize("text", ["2.5", "2.5usd", "'$2.50'"])
def test_prices_are_numbers_or_money(text: str) -> None:
    assert site(f"price_per_gpu_hour: {text}").price_per_gpu_hour == 2.5


def test_a_path_names_the_same_site_from_any_directory(tmp_path: Path) -> None:
    assert lasting_name("alpine") == "alpine"
    assert lasting_name("here.yaml") == str(Path.cwd() / "here.yaml")
    assert lasting_name(str(tmp_path / "x.yaml")) == str(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: 0", r"site: nodes=0 must be at least 1\."),
        ("partition: gpu", "partition belongs to scheduler slurm, but this site has"),
        (
            "scheduler: pbs\ndevice_type: cpu\ngpus_per_node: 1\npartition: gpu",
            "partition belongs to scheduler slurm, but this site has scheduler=pbs",
        ),
        (
            SLURM.replace("partition", "queue"),
            "queue belongs to scheduler pbs, but this site has scheduler=slurm",
        ),
        (
            SLURM + "gpu_request: torque",
            r"gpu_request='torque' is not known\. Valid: gres, gpus",
        ),
        (SLURM + "memory_per_gpu: 8GB", "memory_per_node and memory_per_gpu exclude"),
        (
            "scheduler: address\ndevice_type: cpu\ngpus_per_node: 1",
            "scheduler='address' is not known. Valid: local,",
        ),
        (
            "scheduler: slurm\ngpus_per_node: 1",
            "device_type is missing. What a rank runs on",
        ),
        ("scheduler: slurm\ndevice_type: cpu", "scheduler=slurm needs gpus_per_node"),
        (SLURM.replace("--mail-type=END", "'#SBATCH -x'"), "starts with '#'"),
        (SLURM.replace("--mail-type=END", '"-a\\n-b"'), "has several lines"),
        (
            SLURM.replace("--mail-type=END", "--nodes=3"),
            "'--nodes' is written by Scale",
        ),
        (SLURM.replace("--mail-type=END", "-N 3"), "'-N' is written by ScaleLab"),
        (SLURM.replace("--mail-type=END", "-N2"), "'-N' is written by ScaleLab"),
        (SLURM.replace("--mail-type=END", "-n4"), "'-n' is written by ScaleLab"),
        (SLURM.replace("--mail-type=END", "-G 4"), "'-G' is written by ScaleLab"),
        (SLURM.replace("--mail-type=END", "-c 8"), "'-c' is written by ScaleLab"),
        (SLURM.replace("--mail-type=END", "-Hv -x n1 -N2"), "'-N' is written by Scale"),
        (SLURM.replace("--mail-type=END", "--wait --nodes 3"), "'--nodes' is written"),
        (SLURM.replace("--mail-type=END", "'--gres=gpu:4'"), "'--gres=gpu' is written"),
        (SLURM.replace("--mail-type=END", "--output=x"), "'--output' is written"),
        (SLURM.replace("--mail-type=END", "--array=0-3"), "'--array' is written by"),
        (
            SLURM.replace("--mail-type=END", "--mem-per-cpu=4G"),
            "'--mem-per-cpu' and memory_per_node exclude each other",
        ),
        (
            PBS.replace("-m abe", "-l ngpus=1"),
            "'-l ngpus' is written by ScaleLab",
        ),
        (PBS.replace("-m abe", "-J 0-2"), "'-J' is written by ScaleLab"),
        (PBS.replace("-m abe", "-qworkq"), "'-q' is written by ScaleLab"),
        (
            PBS.replace("-m abe", "-lselect=2"),
            r"'-l select' is written by ScaleLab.* goes into chunk, such as \[fast=Tr",
        ),
        (PBS + "chunk: [ngpus=2]", "'ngpus=2' is written from gpus_per_node. Set that"),
        (PBS + "chunk: [mem=2gb]", "'mem=2gb' is written from memory_per_node"),
        (PBS + "chunk: [fast]", "'fast' is no resource of a chunk. Write one NAME=VAL"),
        (PBS + "chunk: ['a=1:b=2']", "'a=1:b=2' is no resource of a chunk"),
        (
            PBS + "chunk: [mpiprocs=2]",
            "start a node's process 2 times. Only mpiprocs=1",
        ),
        (
            PBS + "gpu_request: torque\nchunk: [a=1]",
            "chunk adds to the chunks of select, and gpu_request=torque has none",
        ),
        (
            PBS.replace("-m abe", "-l scratch=1gb,walltime=9"),
            "'-l walltime' is written",
        ),
        (SLURM + "request_gpus: false", "request_gpus=false with device_type=cuda"),
        (
            SLURM.replace("cuda\n", "cpu\ngpu_type: a100\n", 1),
            "gpu_type says something about GPUs, but with device_type=cpu none",
        ),
        (
            "price_per_gpu_hour: 2\nprice_per_node_hour: 9",
            "price_per_gpu_hour and price_per_node_hour exclude each other",
        ),
        (
            "price_per_gpu_hour: 1.0e+15",
            r"1e\+15 is not a price: it must be less than 1e\+15\.",
        ),
        ("price_per_gpu_hour: 0", r"price_per_gpu_hour: 0 is not a price"),
        (
            SLURM + "node_groups: {a b: {}}",
            r"node_groups\.a b\.\[key\]: is no name of a node group\. Use at most 32",
        ),
        ("price_per_gpu_hour: true", "price_per_gpu_hour: True is not a price"),
        ("price_per_node_hour: 2eru", "price_per_node_hour: the currency 'eru' is"),
        (
            "links: {between_nodes: {bandwidth: 100}}",
            r"links\.between_nodes\.bandwidth: 100 has no unit\. Write '100Gbit/s'",
        ),
        (
            "links: {between_nodes: {bandwidth: 100Gb/s}}",
            r"links\.between_nodes\.bandwidth: '100Gb/s' may mean bits or bytes",
        ),
        (
            "links: {between_nodes: {bandwidth: 1GB/s, latency: 5}}",
            r"links\.between_nodes\.latency: 5 has no unit\. Write '5us' or '0\.2ms'",
        ),
        ("links: {between_nodes: {}}", r"links\.between_nodes\.bandwidth is missing"),
        ("max_jobs: 3", "max_jobs belongs to scheduler slurm or pbs, but this site"),
        ("interface: ib0", "interface belongs to scheduler slurm or pbs or allocation"),
        (SLURM.replace("4h", "4"), "walltime: 4 has no unit"),
        (SLURM.replace("64GB", "64"), "memory_per_node: 64 has no unit"),
        (SLURM.replace("partition: gpu", "partition: a b"), "partition='a b' has the"),
        ("scheduler: slrum", "scheduler='slrum' is not known. Did you mean 'slurm'"),
    ],
)
def test_settings_that_conflict_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        site(text)


def test_a_site_or_one_of_its_groups_states_its_links() -> None:
    stated = "links: {between_nodes: {bandwidth: 100Gbit/s, latency: 5us}}\n"
    slower = "{links: {between_nodes: {bandwidth: 1.25GB/s}}}"
    found = site(SLURM + stated + f"node_groups: {{old: {slower}, new: {{}}}}")
    links = {name: group.links for name, group in found.groups.items()}
    fast = Link(bandwidth_bytes_per_s=12.5e9, latency_s=5e-6)
    assert links["new"] is not None
    assert links["new"].between_nodes.link == fast
    assert links["old"] is not None
    assert links["old"].between_nodes.link == Link(bandwidth_bytes_per_s=1.25e9)
    assert site(SLURM).links is None
