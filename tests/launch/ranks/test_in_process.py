from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from watching import ENTRY, STAND_IN

from scalelab.errors import SpecError
from scalelab.inputs.outcome import Outcome
from scalelab.launch.ranks.rank_process import run_in_process
from scalelab.records.attempt import read_result
from scalelab.training.trainer import TorchTrainer


class StandIn(TorchTrainer):
    entry = ENTRY


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STAND_IN)


@pytest.fixture
def _no_group_left() -> Iterator[None]:
    yield
    torch = sys.modules.get("torch")
    assert torch is None or not torch.distributed.is_initialized()


@pytest.mark.usefixtures("_no_group_left")
def test_rank_runs_here_and_is_recorded(make_spec: Callable[..., Any]) -> None:
    spec = make_spec("meet", ranks=1)
    result = run_in_process(spec, StandIn())
    assert result.outcome is Outcome.COMPLETED
    assert result.measurements["start_up_s"] > 0
    assert read_result(spec.files) == result


def test_missing_result_is_a_failure(make_spec: Callable[..., Any]) -> None:
    result = run_in_process(make_spec("return_nothing", ranks=1), StandIn())
    assert result.outcome is Outcome.FAILED


@pytest.mark.usefixtures("_no_group_left")
def test_errors_pass_through_to_the_debugger(make_spec: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"^the loss is not finite$"):
        run_in_process(make_spec("raise_error", ranks=1, culprit=0), StandIn())


def test_several_ranks_are_refused(make_spec: Callable[..., Any]) -> None:
    spec = make_spec("meet", ranks=2)
    with pytest.raises(
        SpecError,
        match=f"^{spec.attempt_id} has 2 ranks; one process can hold 1. "
        r"Debug the trial with gpus: \[1\].$",
    ):
        run_in_process(spec, StandIn())
