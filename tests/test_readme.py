"""What the README shows works as it stands there."""

import re
from pathlib import Path

import pytest
from command_lines import between_backticks, blocks, in_blocks, options, read

import scalelab
from scalelab.experiment.spec import Experiment
from scalelab.plan.expand import plan
from scalelab.site.choice import site_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_it_is_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_experiment_it_shows_can_be_planned(tmp_path: Path) -> None:
    (text,) = blocks(README, "yaml")
    site = site_of({"device_type": "cuda", "nodes": 2, "gpus_per_node": 4})
    experiment = Experiment.from_text(text, directory=tmp_path)
    trials = plan(experiment, site).trials
    assert {trial.world_size for trial in trials} == {1, 2, 4, 8}


@pytest.mark.slow
def test_the_python_it_shows_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "table.csv"
    lines = [f"{n},1,{32},{0.1 + 0.02 * n}" for n in (1, 2, 4, 8) for _ in range(2)]
    header = "world_size,num_nodes,local_batch_size,step_time_s"
    table.write_text("\n".join([header, *lines]))
    scalelab.import_table(table, "runs/first")
    (code,) = blocks(README, "python")
    job = 'job={"samples": 1000000}, '
    names: dict[str, object] = {}
    exec(code.replace("recommend(", f"recommend({job}"), names)
    assert isinstance(names["run"], scalelab.Run)


ROWS = re.findall(r"^\| (`scalelab .*) \|$", README, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_the_commands_it_lists_exist_with_their_options(row: str) -> None:
    commands = between_backticks(row.partition(" | ")[0])
    for command in commands:
        read(command)
    known = set().union(*map(options, commands))
    assert set(re.findall(r"--[a-z-]+", row)) <= known


@pytest.mark.parametrize("line", in_blocks(README))
def test_the_commands_it_shows_are_commands(line: str) -> None:
    read(line)


@pytest.mark.parametrize("line", between_backticks(README))
def test_the_commands_it_speaks_of_are_commands(line: str) -> None:
    read(line, is_whole=False)


def test_the_scripts_it_compares_differ_by_three_lines() -> None:
    folder = ROOT / "experiments" / "your_script"
    plain = (folder / "train.py").read_text().partition('"""\n\n')[2].splitlines()
    reporting = (folder / "train_with_metrics.py").read_text()
    lines = reporting.partition('"""\n\n')[2].splitlines()
    assert len(lines) == len(plain) + 3
    assert [line for line in lines if line in plain] == plain
