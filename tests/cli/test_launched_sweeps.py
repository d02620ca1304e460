"""Sweeps of programs under each launcher that are interrupted at a terminal."""

import json
import shutil
import signal
from pathlib import Path

import psutil
import pytest
import ranked_program
from promised import skip_or_fail
from real_sweeps import PATIENCE_S, Start, assert_gone, interrupt
from waiting import wait_until

from scalelab.kinds.launchers import LAUNCHERS

PROGRAM = r"""
name: small
command: python program.py {launcher} -
launcher: {launcher}
code: {{snapshot: program.py}}
metrics: {{regex: 'step (?P<step>\d+) loss (?P<loss>\S+)'}}
measure:
  {{long_trial: none, steps: 100000, relative_precision: 1.0e-9, repeats: 1,
    canary_every: 0}}
gpus: 2
local_batch_size: 8
site: {{device_type: cpu, gpus_per_node: 2}}
"""


def ranks(folder: Path) -> list[psutil.Process]:
    """Return the ranks that have met the others."""
    files = folder.glob("runs/small/trials/*/*/output/rank-*.json")
    return [psutil.Process(json.loads(file.read_text())["pid"]) for file in files]


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.parametrize("launcher", [row.name for row in LAUNCHERS])
def test_ctrl_c_twice_leaves_no_rank_of_a_program(
    start: Start, here: Path, launcher: str
) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        skip_or_fail("mpirun of Open MPI is not installed (apt install openmpi-bin)")
    (here / "program.py").write_text(Path(ranked_program.__file__).read_text())
    process = start(PROGRAM.format(launcher=launcher))
    wait_until(lambda: len(ranks(here)) == 2, "both ranks have met")
    driver = psutil.Process(process.pid)
    processes = [driver, *driver.children(recursive=True), *ranks(here)]
    interrupt(process)
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("Stopping: "):
        assert line, "it ended at the first"
    interrupt(process, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert_gone(processes)
