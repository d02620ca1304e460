"""The pages of reference are what the schema says, and its examples are right."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.tuning import TuneKeys
from scalelab.inputs.placeholders import (
    LAYOUT_PLACEHOLDERS,
    PLACEHOLDERS,
    placeholders_in,
)
from scalelab.reading.logs.lines import read_groups, read_json
from scalelab.site.choice import site_of
from scalelab.site.prices import PriceEntry, read_prices

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
import make_reference  # noqa: E402

EXAMPLES = make_reference.examples()
BASES: list[dict[str, Any]] = [
    {"name": "r", "workload": "digits_mlp", "local_batch_size": 16},
    {"name": "r", "command": "python t.py {local_batch_size}", "local_batch_size": 16},
    {"name": "r", "command": "", "local_batch_size": 16, "learning_rate": 0.1},
    {
        "name": "r",
        "command": " ".join(f"{{{name}}}" for name in LAYOUT_PLACEHOLDERS),
        "local_batch_size": 16,
    },
]
JOB = {"target": "val_acc >= 0.9", "epochs": 9, "samples_per_epoch": 100}
SITES: dict[str, dict[str, Any]] = {
    "local": {"scheduler": "local", "device_type": "cpu"},
    "allocation": {"scheduler": "allocation"},
    "slurm": {"scheduler": "slurm"},
    "pbs": {"scheduler": "pbs"},
}


def refusal(base: dict[str, Any], given: dict[str, Any]) -> str:
    """Return why an experiment is refused; empty where it is accepted."""
    devices = {} if {"gpus", "nodes"} & given.keys() else {"gpus": [1, 2]}
    swept = {"job": JOB} if {"measure", "learning_rate"} & given.keys() else {}
    values = {**base, **devices, **swept, **given}
    if given.keys() & TuneKeys.model_fields:
        one_place = {"gpus": 1, "measure": {"kind": "convergence"}, "job": JOB}
        values = {"tune": {"dropout": [0.0, 0.1]}, **values, **one_place}
    if "command" in given:
        values.pop("workload", None)
    if {"workload", "program"} & given.keys():
        values.pop("command", None)
    if "program" in given:
        values.pop("workload", None)
    try:
        Experiment.from_text(yaml.safe_dump(values))
    except SpecError as error:
        return str(error)
    return ""


def test_the_pages_are_what_the_schema_says() -> None:
    for file, text in make_reference.pages().items():
        assert (DOCS / file).read_text() == text, "run python docs/make_reference.py"


def test_there_is_no_example_of_what_does_not_exist() -> None:
    keys = {key.path for key in make_reference.keys_of(Experiment)}
    assert EXAMPLES["experiment"].keys() == keys
    assert EXAMPLES["site"].keys() == {key.path for key in make_reference.site_keys()}
    of_prices = {key.path for key in make_reference.keys_of(PriceEntry)}
    assert EXAMPLES["prices"].keys() == of_prices
    assert EXAMPLES["placeholders"].keys() == {*PLACEHOLDERS, *LAYOUT_PLACEHOLDERS}


@pytest.mark.parametrize("key", EXAMPLES["prices"])
def test_a_price_list_takes_each_example(key: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(f"- {EXAMPLES['prices'][key]}")
    (section,) = read_prices(file)
    *within, name = key.split(".")
    for each in within:
        section = getattr(section, each)
    assert name in section.model_fields_set


@pytest.mark.parametrize("path", EXAMPLES["experiment"])
def test_an_experiment_takes_each_example(path: str) -> None:
    given = yaml.safe_load(EXAMPLES["experiment"][path])
    inside: Any = given
    for name in path.split("."):
        is_short = name == "name" and path != "name" and isinstance(inside, str)
        assert is_short or name in inside
        inside = inside[name]
        inside = inside[0] if name == "program" else inside
        inside = next(iter(inside.values())) if name == "tune" else inside
    refusals = [refusal(base, given) for base in BASES]
    assert "" in refusals, refusals


@pytest.mark.parametrize(
    ("path", "schedulers"),
    [(key.path, where) for key, where in make_reference.site_keys().items()],
)
def test_a_site_takes_each_example(path: str, schedulers: list[str]) -> None:
    given = yaml.safe_load(EXAMPLES["site"][path])
    accepted = 0
    for scheduler in schedulers:
        if given.get("scheduler", scheduler) != scheduler:
            continue
        base = {"device_type": "cuda", "gpus_per_node": 4, **SITES[scheduler]}
        assert site_of({**base, **given}).scheduler == scheduler
        accepted += 1
    assert accepted


@pytest.mark.parametrize("name", [*PLACEHOLDERS, *LAYOUT_PLACEHOLDERS])
def test_an_example_uses_its_placeholder(name: str) -> None:
    assert placeholders_in(EXAMPLES["placeholders"][name]) == [name]


@pytest.mark.parametrize("name", make_reference.GROUPS)
def test_groups_of_metrics_are_read(name: str) -> None:
    line, pattern = EXAMPLES["json"][name], EXAMPLES["regex"][name]
    group = re.search(r"\?P<(\w+)>", pattern)
    assert group is not None
    assert group[1] == name or name == "NAME"
    reported = read_json(line.encode())
    said = re.sub(r"\(.*\)", "7", pattern)
    patterns = [re.compile(each) for each in (pattern, EXAMPLES["regex"]["step"])]
    printed = read_groups(patterns, f"step 10 {said}".encode())
    assert reported is not None
    assert printed is not None
    for report in (reported, printed):
        found = {**report.metrics, "step": report.step, "samples": report.samples}
        assert {**found, "t": report.t}[group[1]] is not None
