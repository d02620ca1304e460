"""Programs that train with PyTorch and need no log: what the probe sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_specs import rendezvous_of
from probed_programs import (
    PROGRAMS,
    SAMPLES_WITHIN,
    STEPS,
    WARMUP_STEPS,
    check_steps,
    probed,
)
from waiting import DEADLINE_S
from watching import STAND_IN

from scalelab.experiment.program import CommandProgram, MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec
from scalelab.records.streams import read_lines

pytestmark = pytest.mark.slow
repetition = pytest.mark.repetition


@pytest.fixture(scope="module")
def agent() -> Iterator[NodeAgent]:
    """Return an agent that starts programs from a warm interpreter."""
    warm, folders = ("warm_programs",), (str(STAND_IN),)
    with NodeAgent("node-0", "cpu", warm, search_path=folders) as agent:
        yield agent


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        pytest.param("frozen_layers", "loader", marks=repetition),
        pytest.param("uneven_last_batch", "loader", marks=repetition),
        pytest.param("packed_tokens", "loader", marks=repetition),
        pytest.param("evaluation_on_training_loader", "loader", marks=repetition),
        pytest.param("early_stop", "loader", marks=repetition),
        ("no_loader", "not_witnessed"),
        ("skipped_updates", "loader"),
        pytest.param("two_loaders", "loader", marks=repetition),
        pytest.param("ragged", "loader", marks=repetition),
        pytest.param("views", "loader", marks=repetition),
        pytest.param("adversaries", "loader", marks=repetition),
        pytest.param("closures", "loader", marks=repetition),
        pytest.param("prefetched", "loader", marks=repetition),
        pytest.param("step_in_a_thread", "loader", marks=repetition),
    ],
)
def test_a_program_of_one_process_is_measured_without_a_log(
    agent: NodeAgent, tmp_path: Path, name: str, samples: str
) -> None:
    spec = probed(tmp_path, PROGRAMS / "honest" / f"{name}.py")
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    assert result.measurements["samples_witness"] == samples
    uneven = {"uneven_last_batch": "batch_sizes"}
    assert result.measurements.get("samples_differ") == uneven.get(name)


@pytest.mark.parametrize(
    ("name", "samples", "ranks"),
    [
        ("ddp", "loader", "inside"),
        pytest.param("fsdp2", "loader", "store", marks=repetition),
        pytest.param("first_rank_evaluates", "loader", "inside", marks=repetition),
        pytest.param("rate_from_0", "loader", "inside", marks=repetition),
        ("first_rank_looks_first", "loader", "store"),
        ("dummy_data", "not_witnessed", "store"),
    ],
)
def test_ranks_that_train_together_are_measured_without_a_log(
    agent: NodeAgent, tmp_path: Path, name: str, samples: str, ranks: str
) -> None:
    program = PROGRAMS / "honest" / f"{name}.py"
    spec = probed(tmp_path, program, launcher="torchrun", ranks=2)
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    assert result.measurements["samples_witness"] == samples
    assert result.measurements["ranks_witness"] == ranks
    assert result.measurements.get("samples_differ") is None
    if samples == "loader":
        walked = result.measurements["samples_of_pass"]
        assert walked == result.measurements["samples_of_dataset"]


def test_passes_of_accumulation_are_no_steps(agent: NodeAgent, tmp_path: Path) -> None:
    program = PROGRAMS / "honest" / "no_sync.py"
    spec = probed(tmp_path, program, launcher="torchrun", ranks=2, accumulation=2)
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    assert result.measurements["samples_witness"] == "loader"
    assert result.measurements["ranks_witness"] == "inside"


def test_a_silent_evaluation_is_set_apart(agent: NodeAgent, tmp_path: Path) -> None:
    spec = probed(tmp_path, PROGRAMS / "honest" / "evaluation_on_training_loader.py")
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    measured = result.measurements
    assert measured["samples_witness"] == "loader"
    # Three of them, between steps 10, 20 and 30 and the next ones; a step beside one is
    # set apart, too, where the machine has held it up.
    assert STEPS - WARMUP_STEPS - 3 - measured["num_steps"] in range(2 * 3 + 1)
    assert measured["evaluation_s"] > 3 * 0.2
    assert measured["step_time_s"] < 0.1


def test_a_log_is_of_the_steps_that_count_where_the_warm_up_is_doubled(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = probed(
        tmp_path,
        PROGRAMS / "honest" / "slow_start.py",
        metrics=MetricsSource(regex=(r"step (?P<step>\d+)",)),
        warmup_steps=10,
        steps=20,
    )
    measured = agent.run(spec, 0, None).measurements
    assert measured["num_steps"] == 20
    # with the slow ones after the first warm-up it would be several times as long
    ratio = measured["reported_step_time_s"] / measured["step_time_s"]
    assert ratio < 1.5


def test_losses_that_are_printed_go_with_the_steps(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = probed(
        tmp_path,
        PROGRAMS / "honest" / "frozen_layers.py",
        metrics=MetricsSource(regex=(r"loss (?P<loss>\S+)",)),
    )
    check_steps(spec, agent.run(spec, 0, None))
    losses = [row for row in read_lines(spec.files.stream) if "loss" in row]
    assert len(losses) == pytest.approx(STEPS, abs=2)
    assert {row["event"] for row in losses} == {"step"}


def misleading(directory: Path, name: str, **changes: Any) -> AttemptSpec:
    return probed(directory, PROGRAMS / "misleading" / f"{name}.py", **changes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "ignores_batch",
            "handed out 32 samples for each optimiser step (1 x 32), where 8 "
            "were asked: local_batch_size=8 x gradient_accumulation_steps=1. Its batch "
            "size is not the one that the command receives",
        ),
        (
            "hidden_accumulation",
            "(4 x 8), where 8 were asked: local_batch_size=8 x "
            "gradient_accumulation_steps=1. If it accumulates gradients over 4 passes, "
            "write gradient_accumulation_steps: 4, or let its command receive "
            "{gradient_accumulation_steps}. If an optimizer that is no "
            "torch.optim.Optimizer steps between, write probe: none, and metrics.",
        ),
        (
            "two_on_one_device",
            "2 processes train on 1 device: let the command start one process for "
            "each device.",
        ),
        ("replaces_itself", "after 10 steps the program has replaced itself"),
    ],
)
def test_another_batch_than_was_asked_is_refused(
    agent: NodeAgent, tmp_path: Path, name: str, words: str
) -> None:
    result = agent.run(misleading(tmp_path, name), 0, None)
    assert result.outcome is Outcome.REFUSED, result
    assert words in result.reason


@pytest.mark.parametrize(
    ("name", "accumulation", "drawn", "reason"),
    [
        ("slice_of_batch", 1, 2, "model"),
        ("several_updates", 1, 2, "passes"),
        ("token_batches", 1, 4.4, "batch_sizes"),
        ("uneven_accumulation", 4, 5, "passes"),
        ("fewer_samples", 1, 6, "unexplained"),
    ],
)
def test_the_samples_drawn_count_and_not_those_asked_for(
    agent: NodeAgent,
    tmp_path: Path,
    name: str,
    accumulation: int,
    drawn: float,
    reason: str,
) -> None:
    spec = misleading(tmp_path, name, accumulation=accumulation)
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    measured = result.measurements
    assert measured["samples_per_step"] == pytest.approx(drawn, rel=SAMPLES_WITHIN)
    assert measured["samples_differ"] == reason
    assert measured["samples_witness"] == ("model" if reason == "model" else "loader")
    by_step = measured["samples_per_step"] / measured["step_time_s"]
    assert measured["throughput_samples_per_s"] == pytest.approx(by_step)
    last = list(read_lines(spec.files.stream))[-1]
    assert last["samples"] == pytest.approx(measured["num_samples"], rel=0.1)


def test_ranks_that_exchange_a_loss_alone_train_alone(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = misleading(tmp_path, "logged_loss_only", launcher="torchrun", ranks=2)
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    assert result.measurements["ranks_witness"] == "alone"


def test_a_rank_with_fewer_batches_is_named(agent: NodeAgent, tmp_path: Path) -> None:
    spec = misleading(
        tmp_path, "fewer_batches", launcher="torchrun", ranks=2, stall_floor_s=4.0
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.REFUSED, result
    assert (
        "The data loader of rank 1 has 100 samples in a pass, and that of rank 0 has "
        "2,048: the one ends first" in result.reason
    )
    assert result.input_error == result.reason


def test_ranks_that_walk_the_whole_data_are_told(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = misleading(tmp_path, "no_sampler", launcher="torchrun", ranks=2)
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    measured = result.measurements
    assert measured["ranks_witness"] == "inside"
    assert measured["samples_of_pass"] == 2 * measured["samples_of_dataset"]


def test_one_process_on_two_devices_is_refused(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = PROGRAMS / "honest" / "early_stop.py"
    result = agent.run(probed(tmp_path, program, ranks=2), 0, None)
    assert result.outcome is Outcome.REFUSED, result
    assert result.reason.startswith("one process runs, which nothing joins to others")


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("own_counter", r"iter (?P<step>\d+) loss (?P<loss>\S+)"),
        ("capped_epochs", r"(?P<batch_of_epoch>\d+)/(?P<batches_of_epoch>\d+)"),
        ("samples_of_one_rank", r"\[(?P<samples_of_epoch>\d+)/"),
    ],
)
def test_what_a_log_counts_wrongly_is_not_believed(
    agent: NodeAgent, tmp_path: Path, name: str, expression: str
) -> None:
    is_ddp = name == "samples_of_one_rank"
    spec = misleading(
        tmp_path,
        name,
        metrics=MetricsSource(regex=(expression,)),
        launcher="torchrun" if is_ddp else "none",
        ranks=1 + is_ddp,
    )
    result = agent.run(spec, 0, None)
    check_steps(spec, result)
    assert result.measurements["samples_witness"] == "loader"


def test_ranks_that_exchange_nothing(agent: NodeAgent, tmp_path: Path) -> None:
    spec = misleading(tmp_path, "no_exchange", launcher="torchrun", ranks=2)
    measured = agent.run(spec, 0, None).measurements
    assert measured["num_samples"] == STEPS * spec.trial.global_batch_size
    assert measured["samples_witness"] == "loader"
    assert measured["ranks_witness"] == "same_data"


@pytest.mark.parametrize(
    "name", ["no_exchange", pytest.param("rare_exchange", marks=repetition)]
)
def test_ranks_that_train_apart_are_refused(
    agent: NodeAgent, tmp_path: Path, name: str
) -> None:
    spec = misleading(
        tmp_path, name, launcher="torchrun", ranks=2, env={"SHUFFLED": "1"}
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.REFUSED, result
    assert "each trains alone: before step" in result.reason


def test_a_rank_that_lags_behind_marks_the_trial(
    agent: NodeAgent, tmp_path: Path
) -> None:
    env = {"SLOW": "1"}
    spec = misleading(
        tmp_path, "no_exchange", launcher="torchrun", ranks=2, steps=20, env=env
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["validity"] == ["ranks_apart"]


def test_a_late_rank_is_not_taken_to_draw_nothing(
    agent: NodeAgent, tmp_path: Path
) -> None:
    spec = misleading(
        tmp_path, "no_exchange", launcher="torchrun", ranks=2, env={"LATE": "1"}
    )
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["samples_witness"] == "loader"
    drawn = result.measurements["samples_per_step"]
    assert drawn == spec.trial.global_batch_size


def test_nodes_on_one_host_are_told_apart(
    agent: NodeAgent, start: Callable[..., Any], tmp_path: Path
) -> None:
    program = PROGRAMS / "honest" / "ddp.py"
    spec = probed(tmp_path, program, launcher="torchrun", ranks=(1, 1))
    with NodeAgent("node-1", "cpu", (), entry=None) as other:
        meeting = rendezvous_of(agent, other, spec.attempt_id)
        second = start(spec, 1, meeting, on=other)
        result = agent.run(spec, 0, meeting)
        second.result(DEADLINE_S)
        agent.close_rendezvous(spec.attempt_id)
    check_steps(spec, result)
    assert result.measurements["samples_witness"] == "loader"
    assert result.measurements["ranks_witness"] == "inside"


def test_without_the_probe_the_log_is_believed(
    agent: NodeAgent, tmp_path: Path
) -> None:
    source = MetricsSource(regex=(r"iter (?P<step>\d+) loss",))
    spec = misleading(tmp_path, "own_counter", metrics=source, steps=3)
    assert isinstance(spec.program, CommandProgram)
    unprobed = replace(spec.program, without_probe=True)
    result = agent.run(replace(spec, program=unprobed), 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["measured_by"] == "log"
    assert result.measurements["samples_witness"] == "not_witnessed"
    # It counts an iteration for seven steps.
    assert result.measurements["num_samples"] < STEPS * spec.trial.global_batch_size / 5
