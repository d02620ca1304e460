"""What a real SLURM measures, against the same sweep on nodes of one machine.

The profile is the one that ``scalelab site init`` writes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from throwaway_slurm import REPOSITORY, ThrowawaySlurm
from waiting import wait_until

from scalelab.records.store import RunStore

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(300)]

PROFILE = "surveyed-for-good"
HERE = {"scheduler": "local", "device_type": "cpu", "nodes": 2, "gpus_per_node": 2}
ON_TWO_NODES = {"nodes": [1, 2], "gpus_per_node": [1, 2]}
WHERE_AND_WHEN = {
    *("run", "hosts", "device_ids", "validity", "started_at", "ended_at"),
    *("queue_wait_s", "exclusive_node"),
    *("start_up_s", "allocated_gpu_s", "throughput_samples_per_s"),
    *("step_time_s", "step_time_lo_s", "step_time_hi_s", "time_to_target_s"),
    *("data_wait_s", "compute_s", "exposed_sync_s", "optimizer_s", "evaluation_s"),
}
"""Columns that may differ between two runs of one experiment."""


@pytest.fixture(scope="module")
def slurm_for_users(slurm: ThrowawaySlurm) -> Iterator[ThrowawaySlurm]:
    """A SLURM whose user has the experiments, and a profile that was looked through."""
    shutil.copytree(REPOSITORY / "experiments", slurm.home / "experiments")
    (slurm.home / "here.yaml").write_text(json.dumps(HERE))
    survey = ["site", "init", PROFILE, "--device-type", "cpu"]
    code, said = slurm.scalelab(*survey)
    assert code == 0, said
    code, said = slurm.scalelab("doctor", "--site", PROFILE, "--job")
    assert code == 0, said
    # All that has to be changed, where the nodes have more cores on paper.
    if told := re.search(r"^note +cores +n\d has (\d+), though .*", said, re.MULTILINE):
        profile = slurm.home / ".config" / "scalelab" / "sites" / f"{PROFILE}.yaml"
        cores = "cores_per_node: {}\n".format
        profile.write_text(profile.read_text().replace(cores(8), cores(told[1])))
    yield slurm
    shutil.rmtree(slurm.home / "experiments")


def experiment(name: str, **settings: Any) -> dict[str, Any]:
    """Return one of the experiments that are shipped, on nodes and otherwise set."""
    text = (REPOSITORY / "experiments" / f"{name}.yaml").read_text()
    shipped = yaml.safe_load(text)
    del shipped["gpus"]
    return {**shipped, "name": name, **settings}


def sweep(
    slurm: ThrowawaySlurm, settings: Mapping[str, Any], site: str
) -> tuple[str, pd.DataFrame]:
    """Sweep as a user; return what was said, and a row per trial."""
    name = settings["name"]
    run = Path("runs") / f"{name}-{Path(site).stem}"
    (slurm.home / "experiments" / f"{name}.yaml").write_text(json.dumps(settings))
    arguments = [f"experiments/{name}.yaml", "--site", site, "--run", str(run)]
    code, said = slurm.scalelab("sweep", "--yes", *arguments)
    assert code == 0, said
    wait_until(lambda: not slurm.jobs(), "no job is left")
    wait_until(lambda: not slurm.user_processes(), "no process is left")
    rows = RunStore.open(slurm.home / run).observations()
    assert set(rows["outcome"]) == {"completed"}, said
    trial = ["trial_id", "repeat"]
    assert not rows.duplicated(trial).any()
    return said, rows.sort_values(trial).reset_index(drop=True)


def sweep_both(
    slurm: ThrowawaySlurm, settings: Mapping[str, Any]
) -> tuple[str, pd.DataFrame, pd.DataFrame]:
    """Sweep there and here; return what was said there, and both tables."""
    said, there = sweep(slurm, settings, PROFILE)
    _, here = sweep(slurm, settings, "./here.yaml")
    return said, there, here


def check_alike(there: pd.DataFrame, here: pd.DataFrame, *but: str) -> None:
    """Check that two runs differ in where and when, and in nothing else."""
    apart = [column for column in here if column in WHERE_AND_WHEN or column in but]
    pd.testing.assert_frame_equal(
        there.drop(columns=apart), here.drop(columns=apart), rtol=1e-6
    )
    # Of each trial in the median: both share this machine with whatever else runs.
    for column in ("step_time_s", "time_to_target_s"):
        ratio = (there[column] / here[column]).median()
        assert pd.isna(ratio) or 1 / 5 < ratio < 5, (column, ratio)
    assert {reason for each in there["validity"] for reason in each} == set()
    assert there["queue_wait_s"].ge(0).all()
    assert not there["exclusive_node"].any()
    assert here[["queue_wait_s", "exclusive_node"]].isna().all(axis=None)
    two_nodes = there[there["num_nodes"] == 2]
    assert len(two_nodes)
    assert two_nodes["hosts"].map(lambda hosts: len(set(hosts))).eq(2).all()


@pytest.mark.repetition
def test_digits_are_the_same_as_on_one_machine(slurm_for_users: ThrowawaySlurm) -> None:
    measure = {"kind": ["throughput", "convergence", "end_to_end"], "warmup_steps": 5}
    digits = experiment(
        "digits",
        measure={**measure, "steps": 60, "repeats": 1},
        local_batch_size=[32],
        seed=[0],
        **ON_TWO_NODES,
    )
    said, there, here = sweep_both(slurm_for_users, digits)
    assert re.search(r"^Use \d CPU slots? .*, global batch \d+", said, re.MULTILINE)
    kinds = there.groupby(["kind", "num_nodes"]).size().to_dict()
    assert kinds == {
        ("convergence", 1): 3,
        ("end_to_end", 1): 2,
        ("end_to_end", 2): 2,
        ("throughput", 1): 2,
        ("throughput", 2): 2,
    }
    trained = there[there["kind"] != "throughput"]
    assert trained["reached_target"].all()
    assert trained["samples_to_target"].gt(0).all()
    assert trained["final_metric"].between(0.95, 1).all()
    check_alike(there, here)


@pytest.mark.repetition
def test_a_script_that_reports_json_is_the_same_as_on_one_machine(
    slurm_for_users: ThrowawaySlurm,
) -> None:
    script = experiment(
        "your_script_jsonl",
        measure={"warmup_steps": 20, "steps": 60, "repeats": 1},
        local_batch_size=[64],
        nodes=[2],
        gpus_per_node=[1],
    )
    _, there, here = sweep_both(slurm_for_users, script)
    for rows in (there, here):
        # A command goes on until it is ended, which takes it a few steps further.
        assert rows["num_steps"].ge(60).all()
        seen = (20 + rows["num_steps"]) * rows["global_batch_size"]
        assert rows["num_samples"].eq(seen).all()
    check_alike(there, here, "num_steps", "num_samples")


@pytest.mark.repetition
def test_a_script_learns_on_two_nodes_as_on_one_machine(
    slurm_for_users: ThrowawaySlurm,
) -> None:
    script = experiment(
        "your_script",
        measure={"kind": "end_to_end"},
        job={"target": "loss <= 0.3", "epochs": 100, "samples_per_epoch": 1797},
        local_batch_size=[64],
        nodes=[2],
        gpus_per_node=[1],
    )
    _, there, here = sweep_both(slurm_for_users, script)
    assert there["samples_to_target"].gt(0).all()
    assert there["final_metric"].le(0.3).all()
    check_alike(there, here, "num_samples")
