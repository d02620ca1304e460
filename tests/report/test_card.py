"""The card holds what the answer says, and its table is read back as measured."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from measured_runs import EMULATED, completed, measured_run
from sentences import Golden, refused

import scalelab
from scalelab.cli import main
from scalelab.experiment.trial import Trial
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run

QUESTION = {"price": "2usd", "power": "400W", "carbon_g_per_kwh": 300}


def with_memory(trial: Trial) -> AttemptResult:
    peak = 1000 * trial.local_batch_size + trial.repeat
    versions = '{"python": "3.12", "torch": "2.13"}'
    return completed(trial, gpu_memory_peak_bytes=peak, versions=versions)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("runs") / "small"
    return scalelab.load(measured_run(directory, ending=with_memory).directory)


def front_matter(card: str) -> dict[str, Any]:
    """Return the YAML on top of a card."""
    first, front, _ = card.split("---\n", 2)
    assert first == ""
    found: dict[str, Any] = yaml.safe_load(front)
    return found


def test_the_front_matter_is_the_answer(run: Run) -> None:
    front = front_matter(run.card(**QUESTION))
    chosen = run.recommend(**QUESTION).to_dict()
    (row,) = (each for each in chosen["rows"] if each["is_chosen"])
    assert front["scalelab_card"] == 1
    assert front["scalelab"] == scalelab.__version__
    for name in ("world_size", "num_nodes", "basis"):
        assert front[name] == row[name]
    assert {n: front[n] for n in row["batch"]} == row["batch"]
    for name in ("step_time_s", "time_s", "gpu_hours", "cost_usd", "energy_kwh"):
        assert front[name] == pytest.approx(row[name], rel=1e-4), name
    assert front["carbon_g"]["value"] == pytest.approx(row["carbon_g"]["value"], 1e-4)
    efficiency = row["scaling_efficiency"]
    assert front["scaling_efficiency"]["value"] == pytest.approx(efficiency, rel=1e-4)
    assert front["gpu_memory_peak_bytes"] == 1000 * row["batch"]["local_batch_size"] + 1
    assert front["versions"] == "python 3.12, torch 2.13"
    assert front["emulated"] is True
    assert front["run"] == run.hashed_name


def test_peak_memory_is_that_of_the_chosen_settings(tmp_path: Path) -> None:
    def ending(trial: Trial) -> AttemptResult:
        bytes_of = {"fp32": 2000, "bf16": 1000}
        peak = bytes_of[trial.precision] * trial.local_batch_size
        return completed(trial, gpu_memory_peak_bytes=peak)

    both = f"{EMULATED}precision: [fp32, bf16]\n"
    run = scalelab.load(measured_run(tmp_path / "run", both, ending=ending).directory)
    for precision, peak in (("bf16", 1000), ("fp32", 2000)):
        front = front_matter(run.card(select={"precision": precision}))
        of_sample = front["gpu_memory_peak_bytes"] / front["local_batch_size"]
        assert of_sample == peak


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    plain = scalelab.load(measured_run(tmp_path / "run", EMULATED).directory)
    front = front_matter(plain.card())
    assert front.keys().isdisjoint(
        {"cost_usd", "energy_kwh", "carbon_g", "gpu_memory_peak_bytes"}
    )


@pytest.mark.parametrize("is_in_a_readme", [False, True])
def test_the_table_is_read_back_as_it_was_measured(
    run: Run, is_in_a_readme: bool, tmp_path: Path
) -> None:
    card = run.card()
    if is_in_a_readme:
        other = "| a | b |\n|---|---|\n| 1 | 2 |\n"
        card = f"# Model\n\n{other}\n{card}\n\n## More\n\n{other}"
    (tmp_path / "README.md").write_text(card)
    again = scalelab.import_table(tmp_path / "README.md", tmp_path / "again")
    rows = again.observations
    assert rows["emulated"].all()
    keys = ["world_size", "num_nodes", "local_batch_size"]
    medians = run.observations.groupby(keys)["step_time_s"].median()
    assert len(rows) > 1
    for row in rows.to_dict("records"):
        measured = medians[tuple(row[name] for name in keys)]
        assert row["step_time_s"] == pytest.approx(measured, rel=1e-5)
        assert row["workload"] == "emulated"


HOSTILE = "=vit|large <img src=x onerror=go()> [a](b)"


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    """Return a run whose names would break a table, or load a picture."""
    names = f'"{HOSTILE}","A100\n|<b>"'
    rows = [f"{names},{n},1,{32 // n},{1 / n}" for n in (1, 2, 4)]
    head = "workload,device_name,world_size,num_nodes,local_batch_size,step_time_s"
    (tmp_path / "rows.csv").write_text("\n".join([head, *rows]))
    return scalelab.import_table(tmp_path / "rows.csv", tmp_path / "hostile")


def test_names_break_no_markdown(hostile: Run, tmp_path: Path, golden: Golden) -> None:
    table, card = hostile.scaling_table().text("md"), hostile.card()
    _, front, below = card.split("---\n", 2)
    for text in (table, below):
        assert "<" not in text
        assert "[a]" not in text
        golden(text)
        assert "A100 &#124;&#60;b>" in text
    assert yaml.safe_load(front)["workload"] == HOSTILE

    (tmp_path / "card.md").write_text(card)
    again = scalelab.import_table(tmp_path / "card.md", tmp_path / "again")
    assert set(again.observations["workload"]) == {HOSTILE}


def test_a_card_of_a_newer_version_is_refused(run: Run, tmp_path: Path) -> None:
    newer = run.card().replace("scalelab_card: 1", "scalelab_card: 2")
    (tmp_path / "card.md").write_text(newer)
    with refused("newer_card", "version 2", "reads 1"):
        scalelab.import_table(tmp_path / "card.md", tmp_path / "again")


def test_the_command_prints_the_card(
    run: Run, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert main.run(["table", str(run.path), "--card", "--price", "2usd"]) == 0
    assert capsys.readouterr().out == f"{run.card(price='2usd')}\n"
    assert main.run(["table", str(run.path), "--card", "--format", "csv"]) == 2
    golden(capsys.readouterr().err)
