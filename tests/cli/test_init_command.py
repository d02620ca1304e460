import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalelab.experiment.spec import Experiment


def test_what_it_writes_can_be_planned(
    scalelab: Callable[..., Any], here: Path
) -> None:
    ended = scalelab("init")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "Wrote experiment.yaml. Edit it, then: scalelab plan experiment.yaml\n"
    )
    missing = scalelab("plan", "experiment.yaml")
    missing.assert_refused()
    assert "'train.py' does not exist" in missing.err
    Path("train.py").write_text("")
    text = Path("experiment.yaml").read_text()
    Path("experiment.yaml").write_text(text + "site: {gpus_per_node: 8}\n")
    planned = scalelab("plan", "experiment.yaml")
    assert planned.code == 0
    assert planned.out.startswith("my-model on site local: 26 trials\n")


def test_its_lines_are_short_and_complete() -> None:
    from scalelab.cli.init_command import TEMPLATE

    assert TEMPLATE.isascii()
    assert max(map(len, TEMPLATE.splitlines())) <= 88
    experiment = Experiment.from_text(TEMPLATE)
    assert experiment.job is not None
    assert experiment.learning_rate is not None


def test_nothing_is_overwritten(scalelab: Callable[..., Any], here: Path) -> None:
    Path("mine.yaml").write_text("name: precious\n")
    scalelab("init", "mine.yaml").assert_refused()
    assert Path("mine.yaml").read_text() == "name: precious\n"
    scalelab("init", "absent/mine.yaml").assert_refused()
    scalelab("init", ".").assert_refused()
    assert sorted(path.name for path in here.iterdir()) == ["mine.yaml"]


def test_the_schema_is_json(scalelab: Callable[..., Any]) -> None:
    ended = scalelab("schema")
    assert (ended.code, ended.err) == (0, "")
    schema = json.loads(ended.out)
    assert schema["title"] == "ScaleLab experiment"
    assert {"name", "gpus", "workload", "command"} <= set(schema["properties"])
