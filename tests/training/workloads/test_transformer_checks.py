"""What no trial of the language model could run with is refused before it runs."""

from pathlib import Path

import pytest
from planned_trials import planned_trials
from sentences import refused

from scalelab.experiment.checks import check_trials
from scalelab.experiment.spec import Experiment
from scalelab.site.choice import site_of

HEAD = """
name: asked
workload: {{name: transformer_lm, data: {data}, width: 16, heads: 2}}
gpus: [1, 2]
local_batch_size: 4
options: {{sequence_length: [8, 16]}}
"""
CONVERGENCE = """
measure: {long_trial: none, kind: [throughput, convergence], max_samples: 100}
learning_rate: 0.1
job: {target: val_loss <= 2, samples: 100, samples_per_epoch: 100}
"""


def check(text: str, **site: object) -> None:
    asked = Experiment.from_text(text)
    where = site_of({"device_type": "cpu", "gpus_per_node": 2, **site})
    check_trials(asked, where, planned_trials(asked, where))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A training part of 90 bytes and a held-out part of 10."""
    path = tmp_path / "text"
    path.write_bytes(b"a" * 100)
    return path


def test_each_sequence_length_of_the_axis_must_fit(data: Path) -> None:
    with refused("too_few_samples", "100 bytes", "10 bytes", "sequence_length=16"):
        check(HEAD.format(data=data))
    check(HEAD.format(data=data).replace("[8, 16]", "[8, 9]"))


def test_trials_that_train_in_epochs_need_a_global_batch(data: Path) -> None:
    short = HEAD.format(data=data).replace("[8, 16]", "[8, 9]")
    check(short + CONVERGENCE)
    with refused("too_few_samples", "90 bytes", "11", "sequence_length=8", "32"):
        check(short.replace("size: 4", "size: [4, 16]") + CONVERGENCE)


def test_files_that_are_not_there_are_refused(data: Path, tmp_path: Path) -> None:
    lost = HEAD.format(data=f"[{data}, {tmp_path / 'lost'}]")
    with refused("data_missing"):
        check(lost)
    (tmp_path / "lost").mkdir()
    with refused("no_files"):
        check(lost)


def test_files_of_other_machines_are_left_to_the_trials(tmp_path: Path) -> None:
    lost = HEAD.format(data=tmp_path / "lost")
    check(lost, scheduler="slurm", nodes=2)
    with refused("width_does_not_divide", "width=16", "heads=3"):
        check(lost.replace("heads: 2", "heads: 3"), scheduler="slurm", nodes=2)


def test_heads_that_do_not_divide_one_width_of_the_axis(data: Path) -> None:
    axes = HEAD.format(data=data).replace(
        "{sequence_length: [8, 16]}", "{heads: [1, 3], sequence_length: 8}"
    )
    with refused("width_does_not_divide", "width=16", "heads=3"):
        check(axes)


def test_what_has_nothing_to_refuse_is_not_asked() -> None:
    check("name: a\nworkload: digits_mlp\ngpus: 1\nlocal_batch_size: 8\n")
