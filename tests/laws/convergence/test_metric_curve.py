from typing import Any

import numpy as np
import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.inputs.target import Target
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.metric_curves import answering, read_target

EVERY = 1000


def accuracy(samples: np.ndarray, batch: int) -> np.ndarray:
    return 1 - (1 + samples / (4000 * (1 + batch / 512))) ** -0.8


def runs(
    rng: np.random.Generator,
    *,
    stop: float = 0.8,
    budget: int = 60_000,
    schedule: str = "constant",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs that stop at an accuracy, evaluated every thousand samples."""
    observations, streams = [], []
    for batch in (64, 128, 256, 512):
        for seed in range(2):
            trial = f"{batch}-{seed}"
            seen = np.arange(EVERY, budget + 1, EVERY)
            luck = np.exp(0.05 * rng.standard_normal())
            values = accuracy(seen / luck, batch)
            last = int(np.argmax(values >= stop)) if values.max() >= stop else -1
            reached = last >= 0
            seen = seen[: last + 1] if reached else seen
            streams += [
                {"trial_id": trial, "attempt": 1, "event": "evaluation"}
                | {"samples": s, "val_acc": v, "t": 0.1}
                for s, v in zip(seen, values, strict=False)
            ]
            streams.append(
                {"trial_id": trial, "attempt": 1, "event": "step", "samples": 10}
            )
            observations.append(
                {
                    "trial_id": trial,
                    "attempt": 1,
                    "kind": "convergence",
                    "outcome": "completed" if reached else "target_not_reached",
                    "global_batch_size": batch,
                    "target_metric": "val_acc",
                    "metric_mode": "max",
                    "target_value": stop,
                    "reached_target": reached,
                    "samples_to_target": seen[-1] if reached else None,
                    "num_samples": seen[-1],
                    "schedule": schedule,
                }
            )
    return pd.DataFrame(observations), pd.DataFrame(streams)


def test_a_lower_target_is_read_off_runs_that_went_on(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    rows = read_target(observations, streams, Target.parse("val_acc >= 0.6"))
    assert rows["reached_target"].all()
    assert (rows["target_value"] == 0.6).all()
    earlier = rows["samples_to_target"] < observations["num_samples"]
    assert earlier.all()
    law = ConvergenceLaw.fit(rows)
    answer = law.predict(pd.DataFrame({"global_batch_size": [256]}))
    seen = np.arange(EVERY, 60_001, EVERY)
    truth = seen[np.argmax(accuracy(seen, 256) >= 0.6)]
    assert answer["samples_to_target"].item() == pytest.approx(truth, rel=0.15)


def test_the_same_target_reads_as_it_was_recorded(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    rows = read_target(observations, streams, Target.parse("val_acc >= 0.8"))
    recorded = observations["samples_to_target"].astype("Int64")
    assert rows["samples_to_target"].equals(recorded)


def test_a_target_beyond_the_runs_is_a_bound(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    rows = read_target(observations, streams, Target.parse("val_acc >= 0.95"))
    assert rows["samples_to_target"].isna().all()
    assert (rows["outcome"] == "target_not_reached").all()
    assert (rows["num_samples"] == observations["num_samples"]).all()


def test_a_metric_to_minimise_is_read_too(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    streams["val_loss"] = 1 - streams["val_acc"]
    rows = read_target(observations, streams, Target.parse("val_loss <= 0.4"))
    same = read_target(observations, streams, Target.parse("val_acc >= 0.6"))
    assert rows["samples_to_target"].equals(same["samples_to_target"])


def test_a_schedule_planned_for_another_target_cannot_say(
    rng: np.random.Generator,
) -> None:
    observations, streams = runs(rng, schedule="cosine")
    rows = read_target(observations, streams, Target.parse("val_acc >= 0.6"))
    assert rows.empty
    warm, streams = runs(rng, schedule="linear warm-up over 64 samples, constant")
    assert len(read_target(warm, streams, Target.parse("val_acc >= 0.6"))) == 8


def test_trials_without_a_curve_are_left_out(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    part = streams[streams["trial_id"] != "64-0"]
    rows = read_target(observations, part, Target.parse("val_acc >= 0.6"))
    assert set(observations["trial_id"]) - set(rows["trial_id"]) == {"64-0"}


def test_an_unknown_metric_lists_the_known_ones(rng: np.random.Generator) -> None:
    observations, streams = runs(rng)
    with pytest.raises(
        FitError,
        match=r"^No convergence trial evaluated f1\. Evaluated: val_acc\. Ask for one "
        r"of these, run convergence trials that evaluate f1, or leave the target out "
        r"and say how long the job is\.$",
    ):
        read_target(observations, streams, Target.parse("f1 >= 0.5"))
    nothing = observations.drop(columns="target_metric")
    with pytest.raises(
        FitError,
        match=r"^No run evaluated f1, nor any other metric: .* Run convergence trials",
    ):
        read_target(nothing, pd.DataFrame(), Target.parse("f1 >= 0.5"))


def test_only_a_target_that_was_not_stopped_at_is_read_off(
    rng: np.random.Generator,
) -> None:
    observations, streams = runs(rng)

    def unread() -> Any:
        raise AssertionError

    same = answering(observations, unread, Target.parse("val_acc >= 0.8"))
    assert same is observations
    lower = answering(observations, lambda: streams, Target.parse("val_acc >= 0.6"))
    assert len(lower) == len(observations)
    assert (lower["target_value"] == 0.6).all()
    with pytest.raises(FitError, match=r"No convergence trial evaluated f1\."):
        answering(observations, lambda: streams, Target.parse("f1 >= 0.6"))
    imported = answering(observations, pd.DataFrame, Target.parse("val_acc >= 0.6"))
    assert imported is observations
    throughput = observations[["trial_id", "attempt", "global_batch_size"]]
    assert (
        answering(throughput, lambda: streams, Target.parse("val_acc >= 0.6"))
        is throughput
    )
