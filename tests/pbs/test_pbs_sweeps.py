"""Whole sweeps on PBS, or on what stands in for it where there is none."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from scalelab.records.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

SITE = {
    "scheduler": "pbs",
    "device_type": "cpu",
    "request_gpus": True,
    "gpus_per_node": 2,
    "walltime": "10min",
    "poll_interval": "1s",
}
EXPERIMENT = {
    "workload": {"name": "emulated", "sample_time_s": 0.002},
    "measure": {"kind": "throughput", "warmup_steps": 1, "steps": 10, "repeats": 3},
    "local_batch_size": [4],
}


class Pbs:
    """PBS's programs, and a user with a shared home."""

    def __init__(self, home: Path, is_real: bool) -> None:
        self.home = home
        self.env = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.is_real = is_real
        if not is_real:
            self._stand_in()

    def _stand_in(self) -> None:
        state, programs = self.home / "pbs", self.home / "bin"
        state.mkdir()
        programs.mkdir()
        (state / "number").write_text("0")
        script = Path(__file__).with_name("standin_pbs.py")
        for name in ("qsub", "qstat", "qdel", "pbsdsh"):
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {script} {name} "$@"\n')
            path.chmod(0o755)
        self.env["PATH"] = f"{programs}:{self.env['PATH']}"
        self.env["STANDIN_PBS"] = str(state)

    def write(self, name: str, experiment: dict, **site: object) -> list[str]:
        """Write an experiment and a profile; return the words that name them."""
        local = {} if self.is_real else {"interface": "lo", "driver_interface": "lo"}
        text = json.dumps({"name": name, **EXPERIMENT, **experiment})
        (self.home / f"{name}.yaml").write_text(text)
        profile = json.dumps({**SITE, **local, **site})
        (self.home / f"{name}-site.yaml").write_text(profile)
        return [f"{name}.yaml", "--site", f"./{name}-site.yaml"]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "scalelab.cli.main", *words],
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [program, *words],
            cwd=self.home,
            env=self.env,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def known(self) -> list[str]:
        """Return the ids of the jobs that are queued or run."""
        return list(json.loads(self.run("qstat", "-f", "-F", "json")).get("Jobs", {}))

    def observations(self, name: str) -> pd.DataFrame:
        return RunStore.open(self.home / "runs" / name).observations()


@pytest.fixture
def pbs(tmp_path: Path) -> Pbs:
    return Pbs(tmp_path, is_real=shutil.which("qsub") is not None)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.2)


def test_a_sweep_runs_on_the_nodes_that_pbs_grants_though_jobs_are_lost(
    pbs: Pbs,
) -> None:
    words = pbs.write("pool", {"gpus": [1, 2, 4]}, nodes=2)
    sweep = pbs.start("sweep", *words)
    results = pbs.home / "runs" / "pool" / "trials"
    wait_until(lambda: len(list(results.glob("*/*/result.json"))) >= 2, "trials end")
    pbs.run("qdel", pbs.known()[0])
    said, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, said
    rows = pbs.observations("pool")
    done = rows[rows["outcome"] == "completed"]
    assert len(done) == done["trial_id"].nunique() == 9
    assert done.groupby("world_size")["num_nodes"].first().to_dict() == {
        1: 1,
        2: 1,
        4: 2,
    }
    assert set(rows["outcome"]) <= {"completed", "node_fail"}
    wait_until(lambda: not pbs.known(), "no job is left")


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"queue": "nowhere"}, "refused a job: qsub: Unknown queue"),
        (
            {"gpus_per_node": 9, "cores_per_node": 1},
            r"can never run: Can Never Run: Insufficient .* ngpus",
        ),
        (
            {"python": "/nowhere/python"},
            r"(?s)does not know it any more.*The end of its log:.*/nowhere/python",
        ),
    ],
)
def test_what_cannot_be_is_said_in_the_words_of_pbs(
    pbs: Pbs, site: dict[str, object], words: str
) -> None:
    sweep = pbs.start("sweep", *pbs.write("refused", {"gpus": [1]}, **site))
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 3, said
    assert re.search(words, said), said
    assert pbs.known() == []


def test_a_queued_job_that_somebody_deletes_is_replaced(pbs: Pbs) -> None:
    if pbs.is_real:
        pytest.skip("holds all GPUs of the stand-in")
    # All GPUs are held by somebody else's job.
    other = pbs.home / "other.sh"
    other.write_text(
        "#PBS -N 7\n#PBS -l select=2:ncpus=1:ngpus=2\n#PBS -o other.log\nsleep 100\n"
    )
    held = pbs.run("qsub", str(other)).strip()
    sweep = pbs.start("sweep", *pbs.write("queued", {"gpus": [1]}))
    wait_until(lambda: len(pbs.known()) == 2, "the sweep's job waits")
    status = ["status", "runs/queued"]
    wait_until(
        lambda: "Not Running: Insufficient" in pbs.start(*status).communicate()[0],
        "status says why",
    )
    (queued,) = set(pbs.known()) - {held}
    pbs.run("qdel", queued)
    wait_until(lambda: set(pbs.known()) - {held, queued}, "another job waits")
    pbs.run("qdel", held)
    said, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 0, said
    assert len(pbs.observations("queued")) == 3
