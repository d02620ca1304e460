"""The notebooks run from top to bottom, and are shipped with small, static outputs."""

import ast
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

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
REPETITION = pytest.mark.repetition
HOME = Path(__file__).parents[1]
NOTEBOOKS = sorted((HOME / "analysis").glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

EXPERIMENT = """\
name: emulated
workload:
  name: emulated
  sample_time_s: 2.0e-3
  fixed_time_s: 5.0e-3
  gradient_bytes: 100_000_000
  inter_bandwidth_bytes_per_s: 1.0e+9
measure: {long_trial: none, warmup_steps: 2, steps: 10, repeats: 2}
job: {epochs: 10, samples_per_epoch: 1000000}
gpus: [1, 2, 4, 8, 16]
global_batch_size: [256, 512]
site: {name: emulated, device_type: cpu, nodes: 4, gpus_per_node: 4}
"""


# The sweep of a notebook in fewer and shorter trials.
SHORTER = {
    "repeats: 3": "repeats: 1, long_trial: none",
    "steps: 200": "steps: 60",
    "local_batch_size: [64, 128]": "local_batch_size: 64",
}
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


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@EACH
def test_notebooks_are_shipped_with_small_outputs(path: Path) -> None:
    assert path.stat().st_size < 300_000
    cells = [each for each in read(path).cells if each.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    assert counts == [*range(1, len(cells) + 1)]  # from top to bottom, at once
    outputs = [each for cell in cells for each in cell.outputs]
    assert {each.output_type for each in outputs} <= {
        "stream",
        "execute_result",
        "display_data",
    }
    # drawn, for GitHub and for exports: what is interactive needs a kernel or 5 MB
    kinds = {kind for each in outputs for kind in each.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "image/svg+xml"}
    for secret in (str(Path.home()), str(Path.cwd()), "site-packages", "/tmp/"):
        assert secret not in "".join(map(str, outputs))


@EACH
def test_notebooks_end_in_a_sentence(path: Path) -> None:
    *_, heading, last = read(path).cells
    assert heading.source == "## In a sentence"
    (output,) = last.outputs
    assert re.match(r"[A-Z].{40,}\.\n$", output.text, re.DOTALL)


@EACH
def test_notebooks_use_public_names_alone(path: Path) -> None:
    text = "\n".join(c.source for c in read(path).cells if c.cell_type == "code")
    assert "import scalelab\n" in text
    assert not re.search(r"from scalelab|import scalelab\.|sys\.path", text)
    assert {*re.findall(r"\bscalelab\.(\w+)", text)} <= {*scalelab.__all__}


@EACH
def test_shipped_figures_survive_an_export_without_a_network(path: Path) -> None:
    page, _ = HTMLExporter().from_filename(str(path))
    figures = [
        each
        for cell in read(path).cells
        for each in cell.get("outputs", ())
        if "image/svg+xml" in each.get("data", {})
    ]
    assert page.count("data:image/svg+xml") >= len(figures)
    assert "plotly.min.js" not in page


@EACH
def test_notebooks_define_nothing(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                defines = (
                    ast.FunctionDef,
                    ast.AsyncFunctionDef,
                    ast.ClassDef,
                    ast.Lambda,
                )
                assert not isinstance(node, defines), cell.source


def executed(path: Path, parameters: str = "") -> str:
    """Run a notebook and return what it shows as text or HTML."""
    notebook = read(path)
    place = next(
        index
        for index, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=500, resources=resources).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    pages = [each.get("data", {}).get("text/html", "") for each in outputs]
    return "".join([*(each.get("text", "") for each in outputs), *pages])


def of_run(directory: Path) -> str:
    """Return the parameters that read a run as it is."""
    return f"RUN, EXPERIMENT = {str(directory)!r}, None"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if "how_many" in path.stem else REPETITION)
        for path in NOTEBOOKS
        if "own_sweep" not in path.stem  # it makes its own
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.parametrize(
    ("experiment", "attempts"),
    [
        pytest.param(EXPERIMENT, 22, id="several world sizes"),
        pytest.param(ONE_SIZE, 4, id="one world size", marks=REPETITION),
    ],
)
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_notebooks_run_from_top_to_bottom(
    path: Path,
    experiment: str,
    attempts: int,
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    run = swept(experiment, tmp_path / "emulated", rng)
    shown = executed(path, of_run(run))
    assert f"{attempts} attempts of emulated" in shown
    if "how_many" in path.stem:
        # an export to HTML shows these, and nothing of what only JupyterLab draws
        assert shown.count("plotly-graph-div") >= 5
    if "which_law" in path.stem and experiment == ONE_SIZE:
        assert "No contest: a law needs trials on three device counts" in shown


@pytest.fixture
def analysis(tmp_path: Path) -> Path:
    """Copy the notebooks, and beside them the experiments that they sweep."""
    for name in ("analysis", "experiments"):
        shutil.copytree(HOME / name, tmp_path / name)
    return tmp_path / "analysis"


@pytest.mark.slow
@pytest.mark.timeout(300)
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_a_notebook_sweeps_from_its_kernel(analysis: Path) -> None:
    (path,) = analysis.glob("*own_sweep.ipynb")
    text = path.read_text()
    for whole, shorter in SHORTER.items():
        assert whole in text
        text = text.replace(whole, shorter)
    path.write_text(text)
    shown = executed(path)
    assert "2 trials ended" in shown
    assert [*(analysis.parent / "runs").glob("*/run.json")]


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(600)
@EACH
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_notebooks_sweep_and_run_as_they_are_shipped(
    path: Path, analysis: Path, tmp_path: Path
) -> None:
    shown = executed(analysis / path.name)
    assert "attempts of " in shown or "13 trials ended" in shown
    assert [*(tmp_path / "runs").glob("*/run.json")]


SEARCHED = """\
name: searched
workload: {name: digits_mlp, hidden_sizes: [32]}
measure:
  {kind: [throughput, convergence], long_trial: none, warmup_steps: 2, steps: 40,
   repeats: 2}
job: {epochs: 30, samples_per_epoch: 1437, target: val_acc >= 0.9}
gpus: [1, 2]
global_batch_size: [32, 128]
learning_rate: {base: 0.1, at_batch: 32, rule: tuned}
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(300)
@JUPYTER_WARNS_ABOUT_ITS_EVENT_LOOP
@JUPYTER_WARNS_ABOUT_ITS_DIRECTORIES
def test_rates_that_a_sweep_has_searched_stand_beside_the_rules(
    tmp_path: Path,
) -> None:
    (tmp_path / "searched.yaml").write_text(SEARCHED)
    scalelab.sweep(tmp_path / "searched.yaml", directory=tmp_path / "searched")
    (path,) = (path for path in NOTEBOOKS if "learning_rate" in path.stem)
    shown = executed(path, of_run(tmp_path / "searched"))
    assert "Learning rates found: " in shown
    assert "rule linear" in shown
    assert "Samples to val_acc" in shown
    assert "critical_batch_size" in shown
