import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from measured_runs import COMMAND, EMULATED
from sentences import refused

from scalelab.inputs.outcome import Outcome
from scalelab.running.execution import debug

MINE = """\
import torch
from torch.utils.data import TensorDataset
from scalelab import Workload

class Mine(Workload):
    def build_model(self):
        breakpoint()
        return torch.nn.Linear(2, 2)

    def training_data(self):
        return TensorDataset(torch.ones(64, 2), torch.zeros(64, dtype=torch.int64))

class Broken(Mine):
    def build_model(self):
        return {}["no such layer"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    # the trial of a rank sets these for its whole process
    environment = dict(os.environ)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


def write(text: str) -> Path:
    path = Path("experiment.yaml")
    path.write_text(text)
    return path


def test_the_first_trial_on_one_device_runs_here(here: Path) -> None:
    trial, result = debug(write(EMULATED.replace("[1, 2]", "[2, 1]")))
    assert (trial.world_size, trial.local_batch_size) == (1, 4)
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["num_steps"] == 5
    assert [path.name for path in here.iterdir()] == ["experiment.yaml"]


def test_an_auto_batch_starts_small() -> None:
    trial, result = debug(write(EMULATED.replace("[4, 8]", "auto")))
    assert trial.local_batch_size <= 8
    assert result.outcome is Outcome.COMPLETED


OWN = EMULATED.replace(
    "{name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}", "mine_debug:Mine"
)


@pytest.mark.slow
def test_breakpoints_are_met_where_the_code_lies(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine_debug.py").write_text(MINE)
    stops = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(os.getpid()))
    _, result = debug(write(OWN))
    assert stops == [os.getpid()]
    assert result.outcome is Outcome.COMPLETED


def test_nothing_is_caught(here: Path) -> None:
    (here / "mine_debug2.py").write_text(MINE)
    with pytest.raises(KeyError, match="no such layer"):
        debug(write(OWN.replace("mine_debug:Mine", "mine_debug2:Broken")))


def test_commands_are_refused(here: Path) -> None:
    (here / "train.py").write_text("")
    with refused("command_in_process", "'python train.py "):
        debug(write(COMMAND))


def test_trials_on_several_devices_are_refused() -> None:
    with refused("several_devices", "2, 4 devices"):
        debug(write(EMULATED.replace("[1, 2]", "[2, 4]").replace("node: 2", "node: 4")))
