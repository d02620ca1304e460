"""Training that outlasts the walltime of its jobs, on a real SLURM."""

from __future__ import annotations

import json
import re
import time

import pandas as pd
import pytest
from slurm_sweeps import Swept
from throwaway_slurm import ThrowawaySlurm
from waiting import wait_until

from scalelab.records.store import RunStore

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1300)]

# The same training as digits_mlp, but slowly where jobs are: on one machine it takes a
# second, in jobs two minutes: longer than a job may take beside its start.
SLOW_DIGITS = """
import os, time
from torch import nn
from scalelab.training.workloads.digits_mlp import DigitsMlp

PAUSE_S = 0.25 if "SLURM_JOB_ID" in os.environ else 0.0


class Pause(nn.Module):
    def forward(self, images):
        time.sleep(PAUSE_S * self.training)
        return images


class SlowDigits(DigitsMlp):
    def build_model(self):
        return nn.Sequential(Pause(), super().build_model())
"""
# 495 steps of 32 samples.
TRAINED_LONG = {
    "workload": {"name": "slow_digits:SlowDigits", "hidden_sizes": [32]},
    "code": {"snapshot": "slow_digits.py"},
    "measure": {"kind": "end_to_end", "evaluate_every_samples": 960},
    "job": {"target": "val_acc >= 0.999", "epochs": 11, "samples_per_epoch": 1437},
    "nodes": [2],
    "gpus_per_node": [1],
    "local_batch_size": [16],
    "learning_rate": {"base": 0.02, "at_batch": 32, "rule": "sqrt"},
}
HERE = {"scheduler": "local", "device_type": "cpu", "nodes": 2, "gpus_per_node": 1}


def steps(store: RunStore, trial_id: str, number: int) -> pd.DataFrame:
    """Return the steps of an attempt."""
    rows = store.streams().query(
        f"trial_id == {trial_id!r} and attempt == {number} and event == 'step'"
    )
    assert rows["step"].diff().dropna().eq(1).all()
    return rows


def losses(store: RunStore, trial_id: str, number: int) -> pd.Series:
    """Return the loss of each step of an attempt."""
    rows = steps(store, trial_id, number)
    return rows.set_index("step")["loss"].astype(float)


@pytest.mark.repetition
def test_two_nodes_train_across_walltimes_as_if_there_were_none(
    slurm: ThrowawaySlurm,
) -> None:
    (slurm.home / "slow_digits.py").write_text(SLOW_DIGITS)
    (slurm.home / "one-machine.yaml").write_text(json.dumps(HERE))
    swept = Swept(slurm, "across", TRAINED_LONG, walltime="2min")
    there = ["--site", "./one-machine.yaml", "--run", "runs/across-none"]
    code, said = slurm.scalelab("sweep", "across.yaml", *there)
    assert code == 0, said
    assert "No recommendation: " in said, "two nodes share one machine"
    whole = RunStore.open(slurm.home / "runs" / "across-none")
    (expected,) = whole.observations().to_dict("records")
    code, said = swept.run(1200)
    assert code == 0, said + swept.job_logs()
    swept.check_nothing_is_left()
    rows = swept.observations().sort_values("attempt")
    *cut_off, last = rows.to_dict("records")
    assert cut_off, said
    assert {each["outcome"] for each in cut_off} == {"preempted"}, rows["reason"]
    reached = [re.match(r"Ended at step (\d+): ", each["reason"]) for each in cut_off]
    assert all(reached), rows["reason"]
    for column in ("outcome", "reached_target", "final_metric", "num_samples"):
        assert last[column] == expected[column], column
    store = RunStore.open(swept.directory)
    trial_id = last["trial_id"]
    wanted = losses(whole, expected["trial_id"], 1)
    found = [losses(store, trial_id, number) for number in rows["attempt"]]
    # Each attempt ends with a checkpoint, and the next goes on there: no step is lost,
    # and none is done twice.
    ends = [each.index[-1] for each in found]
    assert [int(match[1]) for match in reached if match] == ends[:-1]
    pd.testing.assert_series_equal(pd.concat(found), wanted, rtol=1e-6)


# About half a minute, with an evaluation every second.
EMULATED_LONG = {
    "workload": {
        "name": "emulated",
        "sample_time_s": 0.005,
        "min_samples": 2000,
        "critical_batch_size": 64,
    },
    "measure": {"kind": "convergence", "evaluate_every_samples": 160},
    "job": {"target": "val_acc >= 0.9", "samples": 10_000},
    "gpus": [1],
    "local_batch_size": [16],
}


@pytest.mark.repetition
def test_a_training_whose_job_is_cancelled_saves_what_it_has(
    slurm: ThrowawaySlurm,
) -> None:
    swept = Swept(slurm, "saved", EMULATED_LONG, nodes=1)
    swept.start()
    streams = swept.directory / "trials"
    wait_until(lambda: list(streams.glob("*/001/stream.jsonl")), "it trains")
    time.sleep(3)
    (job,) = slurm.jobs()
    slurm.cancel(job)
    code, said = swept.end()
    assert code == 0, said + swept.job_logs()
    first, second = swept.observations().sort_values("attempt").to_dict("records")
    assert (first["outcome"], second["outcome"]) == ("node_fail", "completed"), said
    # Half a minute has not passed: it was saved because the job was cancelled.
    assert (streams / first["trial_id"] / "001" / "checkpoint").is_dir()
    store = RunStore.open(swept.directory)
    ends, goes_on = (
        steps(store, first["trial_id"], number)["step"].tolist() for number in (1, 2)
    )
    assert goes_on[0] == ends[-1] + 1
