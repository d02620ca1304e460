from dataclasses import replace
from pathlib import Path
from typing import Any

import own_workloads
import pytest
from sentences import refused
from waiting import wait_until

from scalelab.errors import SpecError
from scalelab.experiment.checks import check_workload
from scalelab.experiment.spec import Experiment
from scalelab.site.choice import site_of
from scalelab.training.workloads import introspection
from scalelab.training.workloads.introspection import names_of_built_in
from scalelab.training.workloads.registry import find_workload, names_of
from scalelab.training.workloads.table import BUILT_IN_WORKLOADS

SUPPORT = Path(own_workloads.__file__).parent
HEAD = """
name: asked
gpus: 1
local_batch_size: 8
"""
LOUD = """
import atexit, os, pathlib, subprocess, threading, time
from scalelab import Workload
print("{}")
os.system("echo {}")
atexit.register(print, "{}")
threading.Thread(target=time.sleep, args=(99,)).start()
started = subprocess.Popen(["sleep", "99"])
pathlib.Path(__file__).with_name("started").write_text(str(started.pid))

class Job(Workload):
    def __init__(self, width=3):
        pass
"""
CONVERGENCE = """
measure: {kind: convergence}
job: {target: 'val_f1 >= 0.9', epochs: 9, samples_per_epoch: 1000}
"""


def check(text: str, **site: object) -> None:
    asked = Experiment.from_text(HEAD + text, directory=SUPPORT)
    check_workload(asked, site_of({"device_type": "cpu", **site}), asked.code_root)


@pytest.mark.parametrize("name", BUILT_IN_WORKLOADS)
def test_what_is_known_of_a_built_in_workload_is_what_its_class_says(name: str) -> None:
    said = names_of_built_in(BUILT_IN_WORKLOADS[name])
    is_ = names_of(find_workload(name))
    assert said.metrics is not None
    assert replace(said, metrics=None) == replace(is_, metrics=None)
    assert is_.metrics in (None, said.metrics)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "workload: {name: digits_mlp, hidden: 3, loader_workers: 2}",
            r"^hidden=3 is no parameter of workload 'digits_mlp'\. It takes: hidden_s",
        ),
        (
            "workload: {name: digits_mlp, batch_norm: [false, false]}",
            r"^workload\.batch_norm=\[False, False\] is a list, where workload "
            r"'digits_mlp' takes one value\. To try each of them, write options: "
            r"{batch_norm: \[False, False\]}\.$",
        ),
        pytest.param(
            "workload: resnet_cifar\noptions: {deep: [20, 44]}",
            r"^deep=20 is no parameter of workload 'resnet_cifar'",
            marks=pytest.mark.repetition,
        ),
        pytest.param(
            "workload: digits_mlp" + CONVERGENCE,
            r"^target metric 'val_f1' is not measured by digits_mlp\. It measures: "
            r"val_acc, val_loss\.$",
            marks=pytest.mark.repetition,
        ),
        pytest.param(
            "workload: {name: emulated, min_samples: 9, critical_batch_size: 9}"
            + CONVERGENCE,
            r"by emulated\. It measures: val_acc\.$",
            marks=pytest.mark.repetition,
        ),
        pytest.param(
            "workload: {name: 'own_workloads:MapStyle', width: 3}",
            r"^width=3 is no parameter of workload 'own_workloads:MapStyle'\. It takes",
            marks=pytest.mark.repetition,
        ),
        (
            "workload: own_workloads:MapStyle" + CONVERGENCE,
            r"'val_f1' is not measured by own_workloads:MapStyle: it has no held-out d",
        ),
        ("workload: nowhere:Job", r"there is no module 'nowhere' in "),
    ],
)
def test_what_the_workload_does_not_know_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check(text)


def test_a_target_of_trials_that_evaluate_nothing_is_not_asked_for() -> None:
    check(
        "workload: digits_mlp"
        + CONVERGENCE.replace("kind: convergence", "kind: throughput")
    )


@pytest.mark.parametrize(
    "setting", [{"python": "/opt/python"}, {"prologue": ("module load x",)}]
)
def test_what_another_interpreter_may_know_is_not_refused(
    setting: dict[str, Any],
) -> None:
    check("workload: nowhere:Job", **setting)


def test_nothing_is_asked_of_a_command_or_without_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check("command: python train.py {local_batch_size}")
    monkeypatch.setattr(introspection, "find_spec", lambda name: None)
    check("workload: nowhere:Job")


@pytest.mark.slow
def test_whatever_a_module_says_and_starts_its_class_is_asked(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    text = HEAD + "workload: {name: 'loud:Job', depth: 3}"
    asked = Experiment.from_text(text, directory=tmp_path)
    with refused("unknown_parameter", "depth=3", "width"):
        check_workload(asked, site_of({"device_type": "cpu"}), asked.code_root)
    started = Path("/proc", (tmp_path / "started").read_text(), "stat")
    wait_until(
        lambda: not started.exists() or " Z " in started.read_text(),
        "what the module started has ended",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "patience_s"),
    [
        ("print('{}')\nraise RuntimeError('not here')\n", 60.0),
        pytest.param("import sys\nsys.exit()\n", 60.0, marks=pytest.mark.repetition),
        ("import time\ntime.sleep(99)\n", 0.1),
    ],
    ids=["broken", "ended", "slow"],
)
def test_a_module_that_cannot_say_is_left_to_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, patience_s: float
) -> None:
    (tmp_path / "own.py").write_text(module)
    monkeypatch.setattr(introspection, "PATIENCE_S", patience_s)
    text = HEAD + "workload: {name: 'own:Job', depth: 3}"
    asked = Experiment.from_text(text, directory=tmp_path)
    check_workload(asked, site_of({"device_type": "cpu"}), asked.code_root)
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]
