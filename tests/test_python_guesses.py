"""What an analyst types before reading the code: it works, or errs with what to write.

The expressions were written down before the names of the code were looked at.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from measured_runs import EMULATED, measured_run

import scalelab
from scalelab.errors import ScaleLabError
from scalelab.inputs.numerals import Interval

SLURM = "{name: hpc, scheduler: slurm, device_type: cpu, gpus_per_node: 2, nodes: 1}"
ON_SLURM = EMULATED.replace("{device_type: cpu, gpus_per_node: 2}", SLURM)
WORKS = (
    ("len(run)", 8),
    ("run.name", "small"),
    ("run.path", Path),
    ("run.observations", pd.DataFrame),
    ("run.trials", pd.DataFrame),
    ("run.failures", pd.DataFrame),
    ("run.summary", "8 trials ended"),
    ("str(run)", "<Run 'small' in "),
    ("repr(run)", "8 attempts of emulated on 1 to 2 devices"),
    ("run._repr_html_()", "<pre "),
    ("dir(run)", "observations"),
    ("run.report(here / 'r.html')", Path),
    ("run.write_report(here / 'w.html')", Path),
    ("run.to_csv(here / 'rows.csv')", Path),
    ("run.job", "Job(samples=100000)"),
    ("run.figures.speedup", go.Figure),
    ("repr(run.figures)", "throughput, speedup, efficiency"),
    ("run.recommend(deadline='4h')", "Use "),
    ("run.recommend(max_time=3600).limits", "< 60 min"),
    ("run.recommend(max_time=timedelta(hours=4)).limits", "< 4 h"),
    ("run.recommend(samples=5000).chosen.time", Interval),
    ("run.recommend(epochs=3, samples_per_epoch=900).chosen.gpus", int),
    ("run.recommend(price=2.5).cost", Interval),
    ("run.recommend(price='2.5usd', max_cost='20usd').chosen.cost", Interval),
    ("run.recommend(max_gpu_hours=50).meets_constraints", True),
    ("answer", "Use "),
    ("print(answer)", None),
    ("answer.table", pd.DataFrame),
    ("answer.table.query('is_chosen')", pd.DataFrame),
    ("answer.explain()", "Law: scalelab"),
    ("answer.sbatch()", "#SBATCH"),
    ("answer.to_dict()['rows'][0]['world_size']", 1),
    ("answer.cost", None),
    ("answer.knee", "Knee("),
    ("chosen", " devices ("),
    ("chosen.gpus", int),
    ("chosen.time", Interval),
    ("chosen.hours", Interval),
    ("f'{chosen.hours:.2f} h'", "] h"),
    ("float(chosen.hours)", float),
    ("chosen.gpus * chosen.hours", Interval),
    ("law", "<law 'scalelab' of emulated"),
    ("law.predict(world_size=32)", pd.DataFrame),
    ("law.predict(world_size=[2, 4], local_batch_size=8)", pd.DataFrame),
    ("law.parameters()", pd.DataFrame),
    ("law._repr_html_()", "<table"),
    ("law.curves", "<Curve of 4 points>"),
    ("scalelab.runs(here)", "<Run 'small' in "),
    ("scalelab.runs(here)[0].name", "small"),
    ("[run.name for run in scalelab.runs(here)]", "['small']"),
    ("scalelab.dry_run(here / 'e.yaml')", "small on site local: 8 trials"),
    ("scalelab.dry_run(here / 'e.yaml').trials", pd.DataFrame),
    ("len(scalelab.dry_run(here / 'e.yaml'))", 8),
)
ERRS = (
    ("run.df", "Write run.observations"),
    ("run.plot()", "Write run.figures.speedup"),
    ("run.best", "Write run.recommend()"),
    ("run.predict(32)", "Write run.fit()"),
    ("run.errors", "Write run.failures"),
    ("run.config", "Write run.experiment"),
    ("run.observation", "Did you mean 'observations'?"),
    ("run.head()", "Write run.observations"),
    ("run.export('rows.csv')", "Write run.to_csv('rows.csv')"),
    ("run.table", "Write run.scaling_table()"),
    ("run.compare(run)", "scalelab.compare(before, after)"),
    ("scalelab.Trial", "Valid: LAWS, ConvergenceLaw"),
    ("chosen.to_dict()", "Write chosen.to_json()"),
    ("answer.why", "Write answer.explain()"),
    ("answer.gpus", "Write answer.chosen.gpus"),
    ("answer.best", "Write answer.chosen"),
    ("answer.plot()", "Write answer.figures.trade_off"),
    ("answer.summary", "print(answer)"),
    ("chosen.nodes", "Write chosen.num_nodes"),
    ("chosen.batch_size", "Write chosen.batch.global_batch_size"),
    ("chosen.efficiency", "Write chosen.scaling_efficiency"),
    ("chosen.hours.median", "Write interval.value"),
    ("chosen.hours < 5", "Compare its value, lo or hi"),
    ("law.predict(4)", "Write law.predict(world_size=4)"),
    ("law.predict(gpus=4)", "Write world_size"),
    ("law.predict()", "Write law.predict(world_size=32)"),
    ("law.params", "Write law.parameters()"),
    ("run.figures.pareto", "Write figures.trade_off"),
    ("run.recommend(max_time=4)", "Write max_time='4h'"),
    ("run.recommend(budget=20)", "Write max_cost='20usd'"),
    ("run.recommend(max_gpus=8)", "Write gpus=[...]"),
    ("run.recommend(batch_size=64)", "Write batch=..."),
    ("run.recommend(accuracy=0.9)", "Write target='val_acc >= 0.75'"),
    ("run.recommend(deadline='4h', max_time='3h')", "max_time is said twice"),
    ("run.recommend(samples=9, job={'samples': 9})", "Give one of the two"),
    ("run.recommend(confidence=95)", "Write 0.95"),
    ("scalelab.plan(here / 'e.yaml')", "Write scalelab.dry_run('experiment.yaml')"),
    ("scalelab.recommend(run)", "Write scalelab.load('runs/NAME').recommend()"),
    ("scalelab.open('runs/small')", "Write scalelab.load('runs/NAME')"),
    ("scalelab.Run('runs/small')", "write scalelab.load('runs/small')"),
    ("scalelab.runs(here / 'none').newest", "Make one with scalelab.sweep"),
    ("scalelab.dry_run(here / 'e.yaml').df", "Write dry_run.trials"),
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    here = tmp_path_factory.mktemp("runs")
    (here / "e.yaml").write_text(EMULATED)
    run = scalelab.load(measured_run(here / "small", ON_SLURM).directory)
    answer = run.recommend()
    return {
        "here": here,
        "scalelab": scalelab,
        "timedelta": timedelta,
        "run": run,
        "answer": answer,
        "chosen": answer.chosen,
        "law": run.fit(),
    }


def shown(value: Any) -> str:
    """Return what a console shows of a value."""
    return value if isinstance(value, str) else repr(value)


@pytest.mark.parametrize(("expression", "expected"), WORKS)
def test_what_an_analyst_types_works(
    names: Mapping[str, Any], expression: str, expected: Any
) -> None:
    found = eval(expression, dict(names))
    if isinstance(expected, str):
        assert expected in shown(found)
    elif isinstance(expected, type):
        assert isinstance(found, expected)
    else:
        assert found == expected
    if not isinstance(found, pd.DataFrame | go.Figure):  # these show themselves
        assert len(shown(found)) < 4000


@pytest.mark.parametrize(("expression", "hint"), ERRS)
def test_what_does_not_work_errs_with_what_to_write(
    names: Mapping[str, Any], expression: str, hint: str
) -> None:
    with pytest.raises((ScaleLabError, AttributeError, TypeError)) as caught:
        eval(expression, dict(names))
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 800


def test_names_to_write_exist(names: Mapping[str, Any]) -> None:
    """A hint never leads to another error."""
    example = SimpleNamespace(**names)
    objects = {
        "run": example.run,
        "answer": example.answer,
        "chosen": example.chosen,
        "law": example.law,
        "interval": example.chosen.time_s,
        "figures": example.run.figures,
        "dry_run": scalelab.dry_run(example.here / "e.yaml"),
    }
    checked = 0
    for owner in objects.values():
        for guess, right in owner._instead.items():
            assert guess not in dir(owner), f"{guess} of {owner!r} exists"
            name, _, attribute = right.split(",")[0].split("(")[0].partition(".")
            if name in objects and attribute.split(".")[0].split("[")[0]:
                checked += 1
                first = attribute.split(".")[0].split("[")[0].split(" ")[0]
                assert first in dir(objects[name]), right
    assert checked > 100


def test_public_names_are_listed_alone(names: Mapping[str, Any]) -> None:
    for name in ("run", "answer", "chosen", "law"):
        assert not [each for each in dir(names[name]) if each.startswith("_")]
        assert not hasattr(names[name], "_repr_markdown_")


def test_the_table_of_an_answer_is_what_the_command_prints_as_json(
    names: Mapping[str, Any],
) -> None:
    answer = names["answer"]
    rows = answer.to_dict()["rows"]
    table = answer.table
    assert table["world_size"].tolist() == [row["world_size"] for row in rows]
    assert table["time_s_hi"].tolist() == [row["time_s"]["hi"] for row in rows]


def test_what_keywords_leave_open_is_every_curve_and_measured_batch(
    names: Mapping[str, Any],
) -> None:
    law = names["law"]
    table = law.predict(world_size=4)
    assert table["local_batch_size"].tolist() == [4, 8]
    assert table["num_nodes"].tolist() == [2, 2]  # two devices fitted on a node
    asked = pd.DataFrame({"world_size": 4, "num_nodes": 2, "local_batch_size": [4, 8]})
    same = law.predict(asked)
    assert table["step_time_s"].tolist() == same["step_time_s"].tolist()


def test_epochs_alone_are_of_the_samples_of_the_own_job(tmp_path: Path) -> None:
    own = EMULATED.replace("{samples: 100000}", "{epochs: 5, samples_per_epoch: 1000}")
    run = scalelab.load(measured_run(tmp_path / "run", own).directory)
    asked, whole = run.recommend(epochs=90), run.recommend(samples=90_000)
    assert asked.chosen.time_s == whole.chosen.time_s


def test_a_csv_of_a_run_reads_back(names: Mapping[str, Any], tmp_path: Path) -> None:
    run = names["run"]
    path = run.to_csv(tmp_path / "rows.csv")
    again = pd.read_csv(path)
    assert again["step_time_s"].tolist() == run.observations["step_time_s"].tolist()
