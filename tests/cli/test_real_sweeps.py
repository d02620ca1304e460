"""Whole sweeps as a user starts them: real processes, nodes and ranks."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from command_specs import MEET
from measured_runs import EMULATED
from picture_folders import make_pictures
from real_sweeps import LONG, PATIENCE_S, Start, Sweep, attempts, rows

from scalelab.session import load

FEEDS = """
name: small
workload: {name: image_folder, data: pictures, image_size: 8, store: {open_s: 0.05}}
measure: {long_trial: none, warmup_steps: 1, steps: 4, repeats: 2, canary_every: 0}
gpus: 1
local_batch_size: 4
learning_rate: 0.1
options: {feed: [folder, copy_first]}
site: {device_type: cpu, gpus_per_node: 1}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_life_of_a_run(sweep: Sweep, here: Path) -> None:
    first = sweep(EMULATED)
    assert first.returncode == 0, first
    assert first.stderr.splitlines()[0] == f"Running 8 trials into {here}/runs/small."
    assert "Dask dashboard: http://127.0.0.1:" in first.stderr
    assert re.search(r"^8/8 done, 0 running, ", first.stderr, re.M)
    assert first.stdout.endswith(f"Report: {here}/runs/small/report.html\n")
    assert len(attempts()) == 8
    assert {row["outcome"] for row in rows()} == {"completed"}
    found = {(row["world_size"], row.get("ranks_witness")) for row in rows()}
    assert found == {(1, None), (2, "engine")}

    again = sweep(EMULATED)
    assert again.returncode == 0
    assert again.stderr.splitlines()[0] == (
        f"All 8 trials of {here}/runs/small are done."
    )
    assert "Dask" not in again.stderr
    assert again.stdout == first.stdout
    assert len(attempts()) == 8

    longer = EMULATED.replace("[4, 8]", "[4, 8, 16]").replace(
        "repeats: 2", "repeats: 3"
    )
    extended = sweep(longer, "--quiet")
    assert extended.returncode == 0
    assert len(attempts()) == 18
    assert all(name.endswith("-001") for name in attempts())
    assert "Report" not in extended.stdout
    assert "Running" not in extended.stderr

    changed = EMULATED.replace("2.0e-3", "3.0e-3")
    refused = sweep(changed)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert "parameters.sample_time_s: 0.002 -> 0.003" in refused.stderr
    assert len(attempts()) == 18

    accepted = sweep(changed, "--accept-changes")
    assert accepted.returncode == 0
    assert accepted.stderr.startswith(
        "Changed: parameters.sample_time_s: 0.002 -> 0.003."
    )
    assert sum(name.endswith("-002") for name in attempts()) == 8
    old = [row for row in rows() if row["attempt"] == 1]
    assert len(old) == 18
    assert all("code_changed" in row["validity"] for row in old)
    new = [row for row in rows() if row["attempt"] == 2]
    assert not any("code_changed" in row["validity"] for row in new)
    versions = json.loads(Path("runs/small/run.json").read_text())["versions"]
    assert len(versions) == 3


WORKLOAD = """\
from pathlib import Path

import torch
from torch.utils.data import TensorDataset
from scalelab import Workload

class Mine(Workload):
    def __init__(self, width: int = 2, data: str = "") -> None:
        self.width = width
        self.data = data

    def build_model(self):
        return torch.nn.Linear(self.width, 2)

    def training_data(self):
        if self.data:
            Path(self.data).read_text()
        points = torch.ones(256, self.width)
        return TensorDataset(points, torch.zeros(256, dtype=torch.int64))
"""
OWN = """\
name: small
workload: {{name: "mine:Mine", {parameters}}}
measure: {{long_trial: none, warmup_steps: 1, steps: 5, repeats: 1}}
job: {{samples: 1000}}
gpus: [1, 2]
local_batch_size: 8
site: {{device_type: cpu, gpus_per_node: 2}}
"""


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_pictures_are_copied_first_or_streamed_and_each_has_its_start_up(
    sweep: Sweep, here: Path
) -> None:
    make_pictures(here / "pictures")
    swept = sweep(FEEDS)
    assert swept.returncode == 0, swept
    start_up_s: dict[str, list[float]] = {feed: [] for feed in ("folder", "copy_first")}
    for row in rows():
        assert row["outcome"] == "completed", row
        start_up_s[row["options.feed"]].append(row["start_up_s"])
    declared_s = 34 * 0.05  # of 34 pictures to train on
    assert min(start_up_s["copy_first"]) >= declared_s
    answer = load("runs/small").recommend(job={"samples": 100_000}, batch=4)
    assert answer.chosen.settings["feed"] == "copy_first"
    (contents,) = (each for each in answer.facts if each.kind == "times_contain")
    assert contents.values["beside_s"]["start-up"] == max(start_up_s["copy_first"])


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_workload_of_ones_own(sweep: Sweep, here: Path) -> None:
    Path("mine.py").write_text(WORKLOAD)
    data = here / "data.txt"
    wrong = sweep(OWN.format(parameters="height: 3"))
    assert wrong.returncode == 2
    assert "height=3 is no parameter of workload 'mine:Mine'" in wrong.stderr
    assert wrong.stderr.splitlines()[-1].startswith("Error: ")

    text = OWN.format(parameters=f"data: {data}")
    absent = sweep(text)
    assert absent.returncode == 1, absent
    assert f"No such file or directory: '{data}'" in absent.stderr
    assert "rank-0.log" in absent.stderr
    assert len(attempts()) == 1, "the other trial was not worth its cost"
    data.write_text("")
    mended = sweep(text)
    assert mended.returncode == 0, mended
    assert len(attempts()) == 3
    (copy,) = Path("runs/small/code").iterdir()
    assert [path.name for path in copy.glob("*.*")] == ["mine.py"]

    Path("mine.py").write_text(WORKLOAD + "\n# another thought\n")
    refused = sweep(text)
    assert refused.returncode == 2
    assert re.search(r"code_hash: '\w{12}' -> '\w{12}'", refused.stderr)


SCRIPT = f"""{MEET}
import argparse
held = meet()
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int)
arguments = parser.parse_args()
world = int(os.environ["WORLD_SIZE"])
for step in range(1, 1000):
    time.sleep(0.005)
    if os.environ["RANK"] == "0":
        print("step", step, "samples", step * arguments.batch * world, flush=True)
"""
COMMAND = """\
name: small
command: python script.py --batch {local_batch_size}
metrics: {regex: 'step (?P<step>[0-9]+) samples (?P<samples>[0-9]+)'}
measure: {long_trial: none, warmup_steps: 2, steps: 20, repeats: 1}
job: {samples: 1000}
gpus: [1, 2]
local_batch_size: 8
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
def test_a_command_is_swept_and_resumed(sweep: Sweep, here: Path) -> None:
    Path("script.py").write_text(SCRIPT)
    first = sweep(COMMAND)
    assert first.returncode == 0, first
    again = sweep(COMMAND)
    assert again.returncode == 0, again
    assert "All 2 trials" in again.stderr


KEYS = """\
code: {snapshot: [script.py, experiment.yaml]}
env: {OF_GROUP: written-in-the-file}
env_from: [OF_USER]
"""
NEEDS_KEYS = """\
import hashlib, os
for name, hashed in (("OF_GROUP", "39359678f938"), ("OF_USER", "fd5aa4584da4")):
    found = hashlib.sha256(os.environ[name].encode()).hexdigest()
    assert found.startswith(hashed), (name, found)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_keys_reach_the_program_and_are_in_no_record(
    sweep: Sweep, here: Path, environment: dict[str, str]
) -> None:
    Path("script.py").write_text(NEEDS_KEYS + SCRIPT)
    missing = sweep(COMMAND + KEYS)
    assert missing.returncode == 2
    assert "env_from: OF_USER is not set in the environment" in missing.stderr
    assert not Path("runs").exists()
    environment["OF_USER"] = "another-{seed}-key"
    done = sweep(COMMAND + KEYS)
    assert done.returncode == 0, done
    files = [path for path in Path("runs").rglob("*") if path.is_file()]
    telling = [
        path.name
        for path in files
        for key in (b"written-in-the-file", b"another-{seed}-key")
        if key in path.read_bytes()
    ]
    assert telling == ["env.json"]
    again = sweep(COMMAND + KEYS)
    assert again.stderr.startswith("All 2 trials")
    record = Path("runs/small/experiments/0001.yaml").read_text()
    copied = sweep(record.replace("repeats: 1", "repeats: 2"), "--accept-changes")
    assert copied.returncode == 2
    assert "env.OF_GROUP is a hash, as the records of a run hold it" in copied.stderr


@pytest.mark.slow
@pytest.mark.repetition
def test_a_budget_ends_a_sweep(sweep: Sweep, here: Path) -> None:
    ended = sweep(LONG, "--sweep-budget", "0.004gpu-h")
    assert ended.returncode == 0
    early = "The sweep ended early: the budget of 0.004 emulated GPU-h is spent"
    assert early in ended.stderr
    assert re.search(
        r"^Not run: \d trials?\. The same command goes on", ended.stderr, re.M
    )
    assert 0 < len(attempts()) < 8


@pytest.mark.slow
def test_a_cluster_that_refuses_has_its_own_exit_code(
    sweep: Sweep, here: Path, environment: dict[str, str]
) -> None:
    environment["CUDA_VISIBLE_DEVICES"] = ""
    ended = sweep(EMULATED.replace("device_type: cpu", "device_type: cuda"))
    assert ended.returncode == 3
    assert ended.stderr.splitlines()[-1].startswith("Error: ")


@pytest.mark.slow
def test_a_breakpoint_opens_the_debugger(start: Start, here: Path) -> None:
    Path("mine.py").write_text(
        WORKLOAD.replace(
            "        return torch.nn.Linear",
            "        breakpoint()\n        return torch.nn.Linear",
        )
    )
    process = start(
        OWN.format(parameters="width: 3"), "--in-process", stdin=subprocess.PIPE
    )
    out, err = process.communicate("p 'width', self.width\nc\n", timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "('width', 3)" in out
    assert "(Pdb)" in out
    assert re.search(r"^completed: .*1 devices? on 1x1", out.split("(Pdb)")[-1].strip())
    assert "  step_time_s " in out
    assert sorted(os.listdir()) in (
        ["experiment.yaml", "mine.py"],
        ["__pycache__", "experiment.yaml", "mine.py"],
    )
