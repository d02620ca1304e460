"""The samples of an epoch: said with the job, or seen in the trials' data loaders."""

from typing import Any

import pytest
from sentences import refused

from scalelab.experiment.job import Job
from scalelab.experiment.spec import Experiment

BOTH = "name: a\ngpus: 1\nlocal_batch_size: 8\n"
COMMAND = BOTH + "command: python train.py\nlauncher: none\n"


def row(
    ranks: int, of_pass: float | None, of_dataset: float | None = 1000
) -> dict[str, Any]:
    return {
        "world_size": ranks,
        "samples_of_pass": of_pass,
        "samples_of_dataset": of_dataset,
    }


@pytest.mark.parametrize(
    ("rows", "samples"),
    [
        ([row(1, 1000)], 1000),
        ([row(4, 1004), row(1, 996)], 996),  # a last batch that is left out
        ([row(4, 1004)], 1000),  # samples that pad the last batch
        ([row(1, 992), row(1, 996)], 996),  # of two batch sizes
        ([row(1, None), row(2, 1000)], 1000),
        ([row(4, 4000)], None),  # each rank has a data set of its own
        ([row(1, None)], None),
        ([row(1, 1000, None)], None),  # a data set without a length
        ([], None),
    ],
)
def test_an_epoch_is_a_pass_over_the_loader(
    rows: list[dict[str, Any]], samples: int | None
) -> None:
    found = Job(epochs=3).with_epoch_of(rows)
    assert found.samples_per_epoch == samples
    assert found.lacks_epoch is (samples is None)
    assert found.num_samples(10) == (samples and 3 * samples)


def test_samples_that_were_said_stay() -> None:
    said = Job(epochs=3, samples_per_epoch=500)
    assert said.with_epoch_of([row(1, 1000)]) == said
    assert Job(steps=9).with_epoch_of([row(1, 1000)]) == Job(steps=9)


def test_only_throughput_trials_of_a_probed_command_show_them() -> None:
    epochs = "job: {epochs: 3}\n"
    assert Experiment.from_text(COMMAND + epochs).job == Job(epochs=3)
    with refused("epochs_without_samples"):
        Experiment.from_text(
            BOTH + "workload: digits_mlp\nlearning_rate: 0.1\n" + epochs
        )
    with refused("epochs_without_samples"):
        Experiment.from_text(COMMAND + epochs + "probe: none\nmetrics: open_clip\n")
    with refused("no_end"):
        Experiment.from_text(COMMAND + epochs + "measure: {kind: end_to_end}\n")
