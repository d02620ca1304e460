"""The twin of parameter servers: which window and rate diverge, before they are run."""

from pathlib import Path

import pytest

from scalelab.cli import main
from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.plan.expand import plan
from scalelab.training.servers.twin import TwinRow, twins

EXPERIMENT = """\
name: twin
workload: {name: digits_mlp, hidden_sizes: [16]}
measure: {kind: end_to_end}
job: {samples: 2000}
gpus: [1, 4]
local_batch_size: 8
learning_rate: {base: BASE, rule: RULE}
parallelism: [ddp, parameter_server]
options: {rule: downpour, communication_window: [1, 8], slow_rank_factor: [1, 3]}
product: true
seed: [0, 1]
site: {device_type: cpu, gpus_per_node: 4}
"""


def text(base: str = "0.05", rule: str = "none") -> str:
    return EXPERIMENT.replace("BASE", base).replace("RULE", rule)


def rows(experiment: str) -> list[TwinRow]:
    asked = Experiment.from_text(experiment)
    return list(
        twins(asked.programs().get(None), plan(asked, asked.resolve_site()).trials)
    )


EVEN = ", slow_rank_factor: [1, 3]"


@pytest.mark.slow
@pytest.mark.repetition
def test_a_rate_diverges_with_a_long_window_and_not_once_it_is_scaled() -> None:
    found = rows(text("0.1").replace(EVEN, "").replace("[1, 8]", "8"))
    assert [row.diverges for row in found] == [True]  # 4 workers x 8 steps x 0.1
    assert found[0].trial.world_size == 4
    scaled = rows(text("0.1", "staleness").replace(EVEN, ""))
    assert [row.rate for row in scaled] == pytest.approx([0.1 / 4, 0.1 / 32])
    assert [row.diverges for row in scaled] == [False, False]


@pytest.mark.slow
@pytest.mark.repetition
def test_a_slow_worker_sends_staler_messages() -> None:
    even, uneven = rows(text("0.01").replace("[1, 8]", "1"))
    assert uneven.trial.options["slow_rank_factor"] == 3
    assert uneven.staleness_max > even.staleness_max
    assert even.num_samples == uneven.num_samples == 2000


@pytest.mark.slow
def test_the_table_is_labelled_and_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("twin.yaml").write_text(text("1.0e-3").replace("[1, 8]", "1"))
    assert main.run(["trainer", "torch", "twin", "twin.yaml"]) == 0
    said = capsys.readouterr().out
    assert "VIRTUAL: parameter servers in virtual time." in said
    titles, *_ = [line for line in said.splitlines() if "steps x rate" in line]
    assert titles.split()[:3] == ["workers", "window", "slow_rank_factor"]
    assert [each.name for each in tmp_path.iterdir()] == ["twin.yaml"]


@pytest.mark.repetition
@pytest.mark.slow
def test_trials_that_differ_in_precision_alone_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = text("0.01").replace("[1, 8]", "1").replace(EVEN, "")
    Path("twin.yaml").write_text(f"{plain}precision: [fp32, bf16, fp16]\n")
    assert main.run(["trainer", "torch", "twin", "twin.yaml"]) == 0
    said = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(said) if "steps x rate" in line)
    assert said[start].split()[:3] == ["workers", "window", "precision"]
    found = [line.split() for line in said[start + 1 : start + 4]]
    assert [row[2] for row in found] == ["fp32", "bf16", "fp16"]
    assert len({tuple(row[3:]) for row in found}) == 3  # each computed in its own


def test_without_servers_there_is_nothing_to_show() -> None:
    with pytest.raises(SpecError, match=r"no planned trial has one\. Add parallelism"):
        rows(text().replace("[1, 4]", "1").replace(EVEN, ""))


def test_a_command_has_no_twin() -> None:
    command = "\n".join(
        [
            *("name: twin", "command: python train.py", "gpus: 2"),
            *("local_batch_size: 8", "job: {samples: 2000}"),
        ]
    )
    with pytest.raises(SpecError, match=r"^The twin trains a workload's model"):
        rows(command)
