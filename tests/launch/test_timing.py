from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from scalelab.inputs.outcome import Outcome
from scalelab.launch import timing
from scalelab.launch.timing import Timing
from scalelab.records.attempt import AttemptResult

DONE = AttemptResult(
    outcome=Outcome.COMPLETED, measurements={"validity": ["shared_node"]}
)


def test_other_nodes_add_their_host_only(make_spec: Callable[..., Any]) -> None:
    result = Timing().complete(make_spec("meet", ranks=(1, 1)), 1, DONE)
    assert set(result.measurements) == {"hosts", "validity"}


def test_steady_clocks_leave_no_mark(make_spec: Callable[..., Any]) -> None:
    result = Timing().complete(make_spec("meet"), 0, DONE)
    assert result.measurements["validity"] == ["shared_node"]
    assert "start_up_s" not in result.measurements


def test_clock_that_jumps_is_marked(
    make_spec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        now_at = datetime(2026, 1, 1, tzinfo=UTC)

        @classmethod
        def now(cls, zone: timezone) -> datetime:
            cls.now_at -= timedelta(hours=1)
            return cls.now_at

    monkeypatch.setattr(timing, "datetime", Clock)
    result = Timing().complete(make_spec("meet"), 0, DONE)
    assert result.measurements["validity"] == ["shared_node", "unsteady_clock"]
    assert 0 <= result.measurements["allocated_gpu_s"] < 60
