import subprocess
import sys
from pathlib import Path

import pytest
from gang import HERE, throughput_trial
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.program import WorkloadProgram
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.digits_mlp import DigitsMlp
from scalelab.training.workloads.registry import (
    build_workload,
    find_workload,
    workload_of,
)
from scalelab.training.workloads.table import BUILT_IN_WORKLOADS


def test_built_in_workloads_are_found() -> None:
    for name in BUILT_IN_WORKLOADS:
        assert issubclass(find_workload(name), Workload)


def test_own_workload_is_found_next_to_the_experiment() -> None:
    workload = build_workload("own_workloads:MapStyle", {}, HERE)
    assert type(workload).__name__ == "MapStyle"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", r"workload='resnet' does not exist. Choose from: digits_mlp, emula"),
        ("nowhere:Job", r"there is no module 'nowhere' in .*Put nowhere.py next to th"),
        (
            "own_workloads:NOT_A_WORKLOAD",
            r"'NOT_A_WORKLOAD' in own_workloads is not a Workload.*found: DigitsMlp, ",
        ),
        ("own_workloads:Absent", r"'Absent' in own_workloads is not a Workload"),
    ],
)
def test_unknown_workload_is_refused_with_the_choices(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        find_workload(name, HERE)


def test_module_that_lacks_a_package_says_which(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_here\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        find_workload("needy:Job", str(tmp_path))


def test_unknown_parameter_is_refused_with_the_valid_ones() -> None:
    message = (
        r"hidden=3 is no parameter of workload 'digits_mlp'. "
        r"It takes: hidden_sizes, batch_norm, dropout; "
        r"every workload takes: memory_limit_bytes, loader_workers, prefetch, "
        r"pin_memory, compile, optimizer, momentum, weight_decay\."
    )
    with pytest.raises(SpecError, match=message):
        build_workload("digits_mlp", {"hidden": 3})


@pytest.mark.parametrize("sizes", [8, [0], ["8"]])
def test_hidden_sizes_that_are_no_list_of_counts_are_refused(
    sizes: int | list[int | str],
) -> None:
    with refused("bad_sizes"):
        build_workload("digits_mlp", {"hidden_sizes": sizes})


def test_missing_parameter_is_named(tmp_path: Path) -> None:
    (tmp_path / "demanding.py").write_text(
        "from scalelab.training.workloads.base import Workload\n"
        "class Job(Workload):\n"
        "    def __init__(self, width, **others):\n"
        "        self.width = width\n"
    )
    with pytest.raises(SpecError, match=r"Workload 'demanding:Job' needs width\."):
        build_workload("demanding:Job", {"depth": 3}, str(tmp_path))
    assert build_workload("demanding:Job", {"width": 3}, str(tmp_path)).width == 3


def test_workload_without_a_method_says_so() -> None:
    workload = build_workload("own_workloads:Incomplete", {}, HERE)
    with pytest.raises(NotImplementedError, match=r"Incomplete has no build_model"):
        workload.build_model()
    with pytest.raises(NotImplementedError, match=r"Incomplete has no training_data"):
        workload.training_data()
    assert workload.held_out_data() is None
    assert workload.augment((1,), None) == (1,)


def test_driver_side_modules_do_not_import_torch() -> None:
    code = (
        "import sys\n"
        "import scalelab.training.trainer\n"
        "import scalelab.training.workloads.declared_machine\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Decaying(DigitsMlp):
    def __init__(self, weight_decay: float) -> None:
        super().__init__()
        self.weight_decay = weight_decay


def test_a_class_keeps_a_parameter_that_ranks_have_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "decaying", sys.modules[__name__])
    program = WorkloadProgram(name="decaying:Decaying", parameters={"momentum": 0.5})
    trial = throughput_trial("decaying:Decaying", options={"weight_decay": 0.25})
    workload, options = workload_of(program, trial)
    assert isinstance(workload, Decaying)
    assert workload.weight_decay == 0.25
    assert (options.weight_decay, options.momentum) == (None, 0.5)
