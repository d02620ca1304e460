"""``slow_rank_factor``: the last rank takes so many times as long for a step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gang import HERE, attempt, on, run_attempt, run_trial, stream, throughput_trial
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.kinds.strategies import STRATEGIES
from scalelab.kinds.strategy import TrialSizes
from scalelab.training.engines.training import SlowRank
from scalelab.training.probes.meter import Phase

SLOW = {"slow_rank_factor": 5}


def uneven_trial(parallelism: str, **options: Any) -> Trial:
    return on(
        throughput_trial("digits_mlp"),
        2,
        local_batch_size=256,
        parallelism=parallelism,
        options={**SLOW, **options},
        measurement=Measurement(warmup_steps=2, steps=40, relative_precision=1e-9),
    )


def test_a_rank_sleeps_in_proportion_to_what_it_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    rank = SlowRank(3.0, torch.device("cpu"))
    ticks = iter([10.0, 12.0, 20.0, 21.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    for _ in range(2):  # what lies between is no computation
        rank.begin()
        rank.end()
        rank.end()
    rank.wait()
    rank.wait()
    assert slept == [6.0]  # and not for nothing, which would give up the core


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "options"),
    [
        ("ddp", {}),
        pytest.param(
            "local_sgd", {"averaging_period": 4}, marks=pytest.mark.repetition
        ),
    ],
)
def test_synchronous_ranks_wait_for_the_slow_one(
    tmp_path: Path, parallelism: str, options: Any
) -> None:
    measured = run_trial(
        tmp_path, uneven_trial(parallelism, **options), hidden_sizes=[512, 512]
    )
    # Rank 0 tells its own phases: it computes a fifth of the time and waits the rest.
    steps = stream(tmp_path, "step")[8:]
    waits = sum(step[Phase.EXPOSED_SYNC.column] for step in steps)
    computes = sum(step[Phase.COMPUTE.column] for step in steps)
    assert waits > computes
    assert "validity" not in measured  # the rows are fit for the laws


@pytest.mark.repetition
@pytest.mark.slow
def test_a_slow_worker_takes_fewer_steps_of_a_parameter_server(tmp_path: Path) -> None:
    trial = uneven_trial("parameter_server", rule="dynsgd", communication_window=1)
    measured = run_trial(tmp_path, trial, hidden_sizes=[512, 512])
    # Were both as fast, each would see one message of the other between two of its own.
    assert measured["staleness_max"] >= 3
    assert measured["exposed_sync_s"] < measured["compute_s"]


@pytest.mark.slow
@pytest.mark.repetition
def test_a_slow_rank_learns_what_it_would_learn(tmp_path: Path) -> None:
    hashes = []
    for name, options in (("even", {}), ("uneven", SLOW)):
        trial = on(
            throughput_trial("own_workloads:HashedDigits"),
            2,
            kind=TrialKind.CONVERGENCE,
            options=options,
            measurement=Measurement(max_samples=1500, evaluate_every_samples=500),
        )
        run_trial(tmp_path / name, trial, code_directory=HERE)
        found = stream(tmp_path / name, "evaluation")
        hashes.append([each["weights_hash"] for each in found])
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("parallelism", ["ddp", "local_sgd", "parameter_server"])
@pytest.mark.parametrize("value", [0.5, True, "five"])
def test_factors_are_numbers_from_1(parallelism: str, value: Any) -> None:
    listed = {"averaging_period": [4], "slow_rank_factor": [value]}
    with pytest.raises(
        SpecError, match=r"slow_rank_factor=.* How many times as long .* 1 or more"
    ):
        STRATEGIES[parallelism].check_options(listed)


@pytest.mark.parametrize("parallelism", ["ddp", "local_sgd", "parameter_server"])
def test_nobody_waits_for_the_slow_rank_of_one_device(parallelism: str) -> None:
    one = on(throughput_trial("digits_mlp"), 1).allocation
    sizes = TrialSizes(allocation=one, local_batch_size=16, options=SLOW)
    with refused("slow_rank_alone"):
        STRATEGIES[parallelism].check(sizes)


@pytest.mark.slow
def test_a_workload_with_an_engine_of_its_own_refuses_it(tmp_path: Path) -> None:
    spec = attempt(tmp_path, on(throughput_trial("emulated"), 2, options=SLOW))
    with pytest.raises(Exception, match=r"has no effect on workload 'emulated'"):
        run_attempt(spec)
