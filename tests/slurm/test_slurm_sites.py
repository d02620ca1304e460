"""Profiles written from what a real SLURM says, and checked against it."""

import json

import pytest
from fake_programs import FakePrograms
from slurm_sweeps import EMULATED, Swept
from throwaway_slurm import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(200)]


def lines(said: str) -> dict[str, tuple[str, str]]:
    """Return health and text of each finding by its subject."""
    found = {}
    for line in said.splitlines():
        if line.startswith(("ok ", "note ", "broken ")):
            found[line[8:25].strip()] = (line.split()[0], line[26:])
    return found


def test_a_profile_from_sinfo_is_checked_and_swept_with(slurm: ThrowawaySlurm) -> None:
    code, said = slurm.scalelab("site", "init", "--device-type", "cpu")
    assert code == 0, said
    profile = slurm.home / ".config" / "scalelab" / "sites" / "throwaway.yaml"
    group = "4 x (8 cores, 6 GiB, 2 GPUs)"
    assert f"Wrote {profile}: partition gpu, {group}.\n" in said
    assert "partition: gpu" in profile.read_text()
    code, said = slurm.scalelab("site", "init")
    assert code == 2, said
    assert "throwaway.yaml exists." in said
    code, said = slurm.scalelab("doctor", "--site", "throwaway", "--job")
    assert code == 0, said
    found = lines(said)
    assert {health for health, _ in found.values()} <= {"ok", "note"}, said
    assert found["partition"] == ("ok", f"gpu: {group}")
    assert "to start at" in found["job of 1 node"][1]
    assert found["submit from nodes"] == ("ok", found["submit from nodes"][1])
    assert found["network"][1] == "nodes will reach this machine at 10.77.0.1"
    assert found["shared folder"][1].startswith("n")
    assert found["shared folder"][1].endswith("read and wrote what this machine did")
    assert "reached 10.77.0.1:" in found["node to driver"][1]
    assert found["driver to node"][1].startswith("reached 10.77.0.")
    assert found["node's clock"][0] == "ok"
    assert "CUDA_VISIBLE_DEVICES is 0,1" in found["devices"][1]
    # a pair of virtual interfaces says 10 Gbit/s
    assert "has 10 Gbit/s by " in found["link of nodes"][1]
    assert not list(slurm.home.glob("**/.scalelab-doctor*"))
    swept = Swept(slurm, "surveyed", {**EMULATED, "gpus": [2, 4]})
    code, said = slurm.scalelab("sweep", "surveyed.yaml", "--site", "throwaway")
    assert code == 0, said + swept.job_logs()
    rows = swept.check_complete(2).set_index("world_size")
    assert rows["num_nodes"].to_dict() == {2: 1, 4: 2}


@pytest.mark.parametrize(
    ("site", "subject", "words"),
    [
        ({"partition": "nowhere"}, "partition", "has no partition 'nowhere'. Set part"),
        (
            {"gpus_per_node": 9},
            "job of 1 node",
            "Requested node configuration is not available. Correct the site.",
        ),
        (
            {"partition": "short", "walltime": "1h"},
            "walltime",
            "3600 s is more than the 600 s of partition short. Shorten walltime.",
        ),
    ],
)
def test_what_will_not_work_is_said_beforehand(
    slurm: ThrowawaySlurm, site: dict[str, object], subject: str, words: str
) -> None:
    Swept(slurm, "wrong", {**EMULATED, "gpus": [1]}, **site)
    code, said = slurm.scalelab("doctor", "--site", "./wrong-site.yaml")
    assert code == 3, said
    health, text = lines(said)[subject]
    assert health == "broken"
    assert words in text


def test_what_a_node_lacks_is_said(slurm: ThrowawaySlurm) -> None:
    name = "python-without-torch"
    lacking = "exec /usr/bin/env python -c 'import nothing_here'"
    FakePrograms(slurm.home).does(name, lacking)
    python = str(slurm.home / name)
    Swept(slurm, "lacking", {**EMULATED, "gpus": [1]}, python=python)
    code, said = slurm.scalelab("doctor", "--site", "./lacking-site.yaml", "--job")
    assert code == 3, said
    health, text = lines(said)["job"]
    assert health == "broken"
    assert "No module named 'nothing_here'" in text
    assert not slurm.jobs()
    profile = slurm.home / "lacking-site.yaml"
    settings = json.loads(profile.read_text())
    del settings["python"]
    settings["device_type"] = "cuda"
    profile.write_text(json.dumps(settings))
    code, said = slurm.scalelab("doctor", "--site", "./lacking-site.yaml", "--job")
    assert code == 3, said
    health, text = lines(said)["devices"]
    assert health == "broken", said
