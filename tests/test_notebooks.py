"""The notebooks run from top to bottom, compute nothing themselves, carry no output."""

import ast
import os
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import scalelab
from scalelab.experiment.spec import Experiment
from scalelab.inputs.outcome import Outcome
from scalelab.plan.expand import plan
from scalelab.records.attempt import AttemptResult, AttemptSpec, NodeShare, Placement
from scalelab.records.store import RunStore

JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)
JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)
NOTEBOOKS = sorted((Path(__file__).parents[1] / "analysis").glob("*.ipynb"))

EXPERIMENT = """\
name: emulated
workload:
  name: emulated
  sample_time_s: 2.0e-3
  fixed_time_s: 5.0e-3
  gradient_bytes: 100_000_000
  inter_bandwidth_bytes_per_s: 1.0e+9
measure: {warmup_steps: 2, steps: 10, repeats: 2}
job: {epochs: 10, samples_per_epoch: 1000000}
gpus: [1, 2, 4, 8, 16]
global_batch_size: [256, 512]
site: {name: emulated, device_type: cpu, nodes: 4, gpus_per_node: 4}
"""


ONE_SIZE = EXPERIMENT.replace("gpus: [1, 2, 4, 8, 16]", "gpus: [1]")


def swept(text: str, directory: Path, rng: np.random.Generator) -> Path:
    """Return a swept run, its attempts' results made up from a known law."""
    experiment = Experiment.from_text(text, source="the test")
    site = experiment.resolve_site()
    store = RunStore.create(
        directory,
        experiment_text=text,
        fingerprint=experiment.fingerprint(device_type="cpu"),
    )
    for trial in plan(experiment, site).trials:
        shares = tuple(
            NodeShare(node=f"node{index}", device_ids=tuple(map(str, range(count))))
            for index, count in enumerate(trial.allocation.devices_per_node)
        )
        spec = AttemptSpec(
            run=store.name,
            trial=trial,
            program=experiment.programs()[None],
            number=1,
            directory=str(store.attempt_directory(trial.trial_id, 1)),
            placement=Placement(shares=shares),
            device_type="cpu",
        )
        store.begin(spec)
        store.finish(spec, made_up_result(spec, rng))
    return store.directory


def made_up_result(spec: AttemptSpec, rng: np.random.Generator) -> AttemptResult:
    trial = spec.trial
    ranks, slow = trial.world_size, trial.allocation.num_nodes > 1
    sync = 2 * (ranks - 1) / ranks * (0.1 if slow else 0.01)
    compute = 0.005 + 0.002 * trial.local_batch_size
    step = (compute + sync) * float(np.exp(0.01 * rng.standard_normal()))
    measurements: dict[str, Any] = {
        "num_steps": 10,
        "num_samples": 10 * trial.global_batch_size,
        "step_time_s": step,
        "step_time_lo_s": 0.99 * step,
        "step_time_hi_s": 1.01 * step,
        "compute_s": compute,
        "exposed_sync_s": sync,
        "throughput_samples_per_s": trial.global_batch_size / step,
        "allocated_gpu_s": 10.0 * ranks,
        "device_name": "emulated",
    }
    return AttemptResult(outcome=Outcome.COMPLETED, measurements=measurements)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_define_nothing(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                defines = (
                    ast.FunctionDef,
                    ast.AsyncFunctionDef,
                    ast.ClassDef,
                    ast.Lambda,
                )
                assert not isinstance(node, defines), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_without_a_run_notebooks_say_how_to_make_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [each.source for each in nbformat.read(path, as_version=4).cells]
    (reading,) = (each for each in cells if each.startswith("headers ="))
    with pytest.raises(FileNotFoundError, match="scalelab sweep makes one"):
        exec(reading, {"RUN": None, "Path": Path, "os": os})


def executed(path: Path, run: Path) -> str:
    """Run a notebook on a run and return what it shows as text or HTML."""
    notebook = nbformat.read(path, as_version=4)
    parameters = next(
        index
        for index, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    chosen = nbformat.v4.new_code_cell(f"RUN = {str(run)!r}")
    notebook.cells.insert(parameters + 1, chosen)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=240, resources=resources).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    pages = [each.get("data", {}).get("text/html", "") for each in outputs]
    return "".join([*(each.get("text", "") for each in outputs), *pages])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("experiment", "attempts", "missing"),
    [
        pytest.param(EXPERIMENT, 22, 0, id="several world sizes"),
        pytest.param(ONE_SIZE, 4, 3, id="one world size", marks=pytest.mark.repetition),
    ],
)
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_notebooks_run_from_top_to_bottom(
    path: Path,
    experiment: str,
    attempts: int,
    missing: int,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    shown = executed(path, swept(experiment, tmp_path / "emulated", rng))
    assert f"emulated: {attempts} attempts" in shown
    assert "global batch" in shown
    if "how_many" in path.stem:
        # an export to HTML shows these, and nothing of what only JupyterLab draws
        assert shown.count("plotly-graph-div") >= 5
    if "which_law" in path.stem:
        assert shown.count("No contest. No curve can spare") == missing


SEARCHED = """\
name: searched
workload: {name: digits_mlp, hidden_sizes: [32]}
measure: {kind: [throughput, convergence], warmup_steps: 2, steps: 40, repeats: 2}
job: {epochs: 30, samples_per_epoch: 1437, target: val_acc >= 0.9}
gpus: [1, 2]
global_batch_size: [32, 128]
learning_rate: {base: 0.1, at_batch: 32, rule: tuned}
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_rates_that_a_sweep_has_searched_stand_beside_the_rules(
    tmp_path: Path,
) -> None:
    (tmp_path / "searched.yaml").write_text(SEARCHED)
    scalelab.sweep(tmp_path / "searched.yaml", directory=tmp_path / "searched")
    (path,) = (path for path in NOTEBOOKS if "learning_rate" in path.stem)
    shown = executed(path, tmp_path / "searched")
    assert "Learning rates found: " in shown
    assert "rule linear" in shown
    assert "Samples to val_acc" in shown
    assert "critical_batch_size" in shown
