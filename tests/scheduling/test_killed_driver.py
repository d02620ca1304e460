import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import scripted_rank

from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.launch.scratch import make_scratch
from scalelab.records.store import RunStore

NUM_TRIALS = 12
SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

def main():
    from conftest import Source, Sweep, trial
    from scalelab.cluster.local import LocalNodes

    options = {"entry": "scripted_rank:run_rank", "search_path": (sys.argv[1],)}
    with LocalNodes(2, 2, **options) as nodes:
        sweep = Sweep(nodes, Path(sys.argv[2]))
        driver = sweep.driver(Source([
            trial(number, 1, does="wait", seconds=0.2, test=sys.argv[3])
            for number in range(int(sys.argv[4]))
        ]))
        with sweep.store.lease():
            driver.run()

if __name__ == "__main__":
    main()
"""


def started_processes(parent: int) -> list[psutil.Process]:
    return psutil.Process(parent).children(recursive=True)


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.parametrize("finished_before", [1, 5])
def test_a_killed_driver_is_resumed_without_loss_or_doubling(
    nodes: Any,
    sweep: Any,
    make_source: Any,
    make_trial: Callable[..., Trial],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    finished_before: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = tmp_path / "killed"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [str(Path(__file__).parent), str(directory), request.node.name]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments, str(NUM_TRIALS)],
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": str(Path(scripted_rank.__file__).parent),
        },
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if len(list(directory.glob("trials/*/*/result.json"))) >= finished_before:
            break
        time.sleep(0.005)
    left = started_processes(process.pid)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert alive == []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert list(tmp_path.glob("scalelab-*")), "it could not remove its own"
    scratch = make_scratch()
    assert list(tmp_path.glob("scalelab-*")) == [scratch]

    sweep.store = RunStore.open(directory)
    trials = [
        make_trial(number, 1, does="wait", seconds=0.2) for number in range(NUM_TRIALS)
    ]
    source = make_source(trials)
    driver = sweep.driver(source)
    with sweep.store.lease():
        summary = driver.run()
    assert summary.outcomes == {Outcome.COMPLETED: NUM_TRIALS}, summary.failures
    assert finished_before <= summary.num_resumed < NUM_TRIALS
    told = Counter(row["trial_id"] for row in source.told)
    assert told == Counter(trial.trial_id for trial in trials)
    frame = sweep.store.observations()
    completed = frame[frame["outcome"] == "completed"]
    assert sorted(completed["trial_id"]) == sorted(trial.trial_id for trial in trials)
    assert set(frame["outcome"]) <= {"completed", "node_fail"}
