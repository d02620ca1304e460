"""Ranges of whole numbers, as users write them."""

import pytest

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.fields import Range

TEXT = """\
name: ranged
workload: {name: emulated, sample_time_s: 1.0e-3}
measure: {long_trial: none, steps: 5}
gpus: %s
local_batch_size: 8
site: {device_type: cpu, gpus_per_node: 8}
"""


@pytest.mark.parametrize(
    ("first", "last", "numbers"),
    [(1, 8, (1, 2, 4, 8)), (3, 20, (3, 6, 12, 20)), (5, 5, (5,)), (5, 6, (5, 6))],
)
def test_a_range_is_its_ends_and_the_doublings_between(
    first: int, last: int, numbers: tuple[int, ...]
) -> None:
    assert Range.model_validate({"from": first, "to": last}).doublings == numbers
    asked = Experiment.from_text(TEXT % f"{{from: {first}, to: {last}}}")
    assert asked.gpus == numbers


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{from: 8, to: 2}", "gpus: from 8 to 2 is no range. Write the smaller first."),
        ("{from: 1, to: 8, by: 2}", "gpus: a range has no 'by':"),
        ("{from: 1, to: many}", "gpus.to='many' must be a whole number."),
        ("{from: 1}", "gpus.to is missing."),
        ("{from: 0, to: 8}", "gpus.from=0 must be"),
    ],
)
def test_what_is_no_range_is_refused_with_its_rule(written: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        Experiment.from_text(TEXT % written)
    assert message in " ".join(str(refused.value).split())
