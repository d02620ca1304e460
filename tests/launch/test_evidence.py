from typing import Any

import pytest

from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import Target
from scalelab.launch.verdict import with_evidence
from scalelab.records.attempt import AttemptResult

THROUGHPUT, LONG = TrialKind.THROUGHPUT, TrialKind.END_TO_END


def trial(kind: TrialKind, **measurement: Any) -> Trial:
    return Trial(
        kind=kind,
        workload="command",
        allocation=Allocation(devices_per_node=(1,)),
        local_batch_size=8,
        measurement=Measurement(**measurement),
    )


@pytest.mark.parametrize(
    ("asked", "measured", "lacks"),
    [
        (trial(THROUGHPUT, steps=50), {"num_steps": 50}, None),
        (trial(THROUGHPUT, steps=50), {"num_steps": 20}, None),  # the mean was precise
        (trial(THROUGHPUT, steps=5), {"num_steps": 5}, None),
        (
            trial(THROUGHPUT, steps=50),
            {"num_steps": 19},
            "19 measured steps. At least 20 are needed, and measure.steps=50 were",
        ),
        (trial(THROUGHPUT, steps=5), {}, "0 measured steps. At least 5"),
        (trial(LONG, max_samples=1000), {"num_samples": 950}, None),
        (
            trial(LONG, max_samples=1000),
            {"num_samples": 640},
            "640 training samples, and 1000 were asked for",
        ),
        (
            trial(LONG, max_samples=1000, target=Target.parse("val_acc >= 0.5")),
            {"num_samples": 64, "reached_target": True},
            None,
        ),
    ],
)
def test_completed_needs_the_steps_that_were_asked(
    asked: Trial, measured: dict[str, Any], lacks: str | None
) -> None:
    result = AttemptResult(outcome=Outcome.COMPLETED, measurements=measured)
    found = with_evidence(asked, result)
    if lacks is None:
        assert found == result
    else:
        assert found.outcome is Outcome.FAILED
        assert lacks in found.reason


def test_other_outcomes_need_no_steps() -> None:
    result = AttemptResult(outcome=Outcome.OUT_OF_MEMORY, reason="rank 0 ...", rank=0)
    assert with_evidence(trial(THROUGHPUT), result) == result
