"""A driver that is killed at every call by which it changes files of its run."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fault_checks import SEEDS
from preloading import compiled
from whole_files import check_nothing_lost

from scalelab.records.store import RunStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_TRIALS = 2
# All that a driver writes, and what a node writes for it.
DRIVER = f"""
import sys
from pathlib import Path
from scalelab.experiment.program import CommandProgram, MetricsSource
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.records.attempt import *
from scalelab.records.attempt import write_result
from scalelab.records.control.job_list import CLUSTER_DIRECTORY, JobList
from scalelab.records.store import RunStore
from scalelab.launch.progress import StreamWriter

directory = Path(sys.argv[1])
env = {{"KEY": "secret"}}
text, fingerprint = "env: {{KEY: secret}}\\n", {{"env": env}}
program = CommandProgram(
    command="train", launcher="none", env=env,
    metrics=MetricsSource(regex=("a",)), code_directory="",
)
if (directory / "run.json").exists():
    store = RunStore.open(directory)
else:
    store = RunStore.create(directory, experiment_text=text, fingerprint=fingerprint)
with store.lease(heartbeat_s=600):
    store.extend(text + "seed: 1\\n", fingerprint)
    finished = store.finished(store.recover())
    done = {{row["trial_id"] for row in finished}}
    for seed in range({NUM_TRIALS}):
        trial = Trial(
            kind=TrialKind.THROUGHPUT, workload="command", local_batch_size=1,
            allocation=Allocation(devices_per_node=(1,)), seed=seed,
        )
        if trial.trial_id in done:
            continue
        number = store.next_attempt_number(trial.trial_id)
        spec = AttemptSpec(
            run=store.name, trial=trial, program=program, number=number,
            directory=str(store.attempt_directory(trial.trial_id, number)),
            placement=Placement(shares=(NodeShare(node="n", device_ids=("0",)),)),
            device_type="cpu",
        )
        store.begin(spec)
        stream = StreamWriter(spec.files.stream)
        stream.append({{"event": "step", "step": 1, "samples": 1}})
        stream.close()
        result = AttemptResult(
            outcome=Outcome.COMPLETED, measurements={{"step_time_s": 0.5}}
        )
        write_result(spec.files, result)
        store.finish(spec, result)
        print(spec.attempt_id, flush=True)
    (directory / CLUSTER_DIRECTORY).mkdir(exist_ok=True)
    JobList(last_number=1).write(directory / CLUSTER_DIRECTORY)
    store.observations()
    store.compact()
"""


AT_ONCE = 10
"""Calls that are tried per seed; of all there are a little more than a hundred."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def drive(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]
) -> Run:
    """Return a function that runs the driver of a run; options are the library's."""
    folder = tmp_path_factory.mktemp("counted")
    library = compiled("counted_calls", require_program("cc"), folder)

    def run(directory: Path, **options: int) -> subprocess.CompletedProcess[str]:
        # Not measured for coverage: that writes files of its own.
        env = {name: os.environ[name] for name in os.environ if name[:3] != "COV"}
        env |= {"LD_PRELOAD": str(library), "COUNTED_BELOW": str(directory.parent)}
        env |= {f"COUNTED_{name}": str(value) for name, value in options.items()}
        return subprocess.run(
            [sys.executable, "-c", DRIVER, str(directory)],
            capture_output=True,
            text=True,
            check=False,
            env=env,
        )

    return run


def check_complete(directory: Path, finished: Iterable[str]) -> None:
    store = RunStore.open(directory)
    rows = store.rows()
    # An attempt that was killed while it was being written down is none.
    begun = {(row["trial_id"], row["attempt"]) for row in rows}
    for path in (directory / "trials").glob("*/*"):
        if (path.parent.name, int(path.name)) not in begun:
            assert {each.name for each in path.iterdir()} <= {"attempt.json"}
            shutil.rmtree(path)
    check_nothing_lost(store, finished)
    completed = {
        row["trial_id"]: row["attempt"] for row in rows if row["outcome"] == "completed"
    }
    assert sum(row["outcome"] == "completed" for row in rows) == NUM_TRIALS, rows
    assert len(completed) == NUM_TRIALS
    streams = store.streams()
    assert {*completed.items()} <= {
        *zip(streams["trial_id"], streams["attempt"], strict=True)
    }
    assert store.experiment_text.endswith("seed: 1\n")
    assert store.env() == {"KEY": "secret"}


def test_a_driver_killed_at_any_call_loses_and_doubles_nothing(
    drive: Run, tmp_path: Path
) -> None:
    whole = drive(tmp_path / "whole" / "run")
    assert whole.returncode == 0, whole.stderr
    check_complete(tmp_path / "whole" / "run", whole.stdout.split())
    (said,) = re.findall(r"calls: (\d+)", whole.stderr)
    num_calls = int(said)
    assert num_calls > 50
    calls = range(1, num_calls + 1)
    for at in random.Random(0).sample(calls, min(AT_ONCE * len(SEEDS), num_calls)):
        run = tmp_path / str(at) / "run"
        killed = drive(run, DIE_AT=at)
        assert killed.returncode == -signal.SIGKILL, (at, killed.stderr)
        resumed = drive(run)
        assert resumed.returncode == 0, (at, resumed.stderr)
        check_complete(run, [*killed.stdout.split(), *resumed.stdout.split()])


def test_writes_that_take_half_of_the_bytes_leave_whole_files(
    drive: Run, tmp_path: Path
) -> None:
    done = drive(tmp_path / "run", SHORT=1)
    assert done.returncode == 0, done.stderr
    check_complete(tmp_path / "run", done.stdout.split())
