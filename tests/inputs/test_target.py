import math

import pytest

from scalelab.errors import SpecError
from scalelab.inputs.target import Condition, hold


@pytest.mark.parametrize(
    ("text", "below", "at", "above"),
    [
        ("val_acc >= 0.9", False, True, True),
        ("val_acc > 0.9", False, False, True),
        (" val_loss<=0.9", True, True, False),
        ("val_loss < 0.9", True, False, False),
    ],
)
def test_conditions_hold_on_one_side(
    text: str, below: bool, at: bool, above: bool
) -> None:
    condition = Condition.parse(text)
    assert [condition.holds_for(value) for value in (0.8, 0.9, 1.0)] == [
        *(below, at, above)
    ]
    assert Condition.parse(str(condition)) == condition


@pytest.mark.parametrize(
    "text", ["val_acc => 0.9", "val_acc >= nan", "val_acc == 1", "0.9 < val_acc", ""]
)
def test_what_compares_nothing_is_no_condition(text: str) -> None:
    with pytest.raises(SpecError, match=r"is not a condition\. .* 'val_acc >= 0\.9'"):
        Condition.parse(text)


def test_all_conditions_must_hold_and_unknown_metrics_judge_nothing() -> None:
    both = [Condition.parse("val_acc >= 0.9"), Condition.parse("val_loss < 0.5")]
    assert hold(both, {"val_acc": 0.95, "val_loss": 0.4}) is True
    assert hold(both, {"val_acc": 0.95, "val_loss": 0.6}) is False
    assert hold(both, {"val_acc": 0.95}) is None
    assert hold(both, {"val_acc": 0.95, "val_loss": None}) is False
    assert hold(both, {"val_acc": math.nan, "val_loss": 0.4}) is False
