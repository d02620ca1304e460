"""A value that may hold for the empty cells below it is asked for in every row."""

from collections.abc import Callable

import pytest

from scalelab.errors import SpecError
from scalelab.session.run import Run

Import = Callable[..., Run]
COUNTS = (1, 2, 4)


def table(**columns: list[str]) -> str:
    """Return a table with these columns before those of a measurement."""
    names = [*columns, "gpus", "nodes", "local_batch", "step_time_s"]
    rows = [
        [*cells, str(COUNTS[at % 3]), "1", "32", str(0.1 + at / 100)]
        for at, cells in enumerate(zip(*columns.values(), strict=True))
    ]
    return "\n".join(map(",".join, [names, *rows]))


def test_a_setting_that_is_empty_now_and_then_is_not_used_there(run_of: Import) -> None:
    run = run_of(table(compile=["inductor", "inductor", "inductor", "", "", ""]))
    assert run.observations["options.compile"].isna().tolist() == (
        [False] * 3 + [True] * 3
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"model": ["", "", "vgg", "", "bert", ""]},
            r"resnet50\.csv: the column 'model', which tells curves apart, is empty in "
            r"lines 2, 3, 5, 7\. Write its value in every row: .* \(--ignore model\)\.",
        ),
        ({"model": ["resnet", "", "", "vgg", "", ""]}, "empty in lines 3, 4, 6, 7"),
        ({"framework": ["torch", "", "", "jax", "", ""]}, "'framework', which tells"),
        ({"tp": ["", "2", "", "4", "", ""]}, "the column 'tp', which tells curves"),
        ({"precision": ["bf16", "", "bf16", "", "bf16", ""]}, "empty in lines 3, 5, 7"),
    ],
)
def test_other_empty_cells_are_refused(
    run_of: Import, columns: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        run_of(table(**columns))


def test_a_cell_may_say_that_there_is_none(run_of: Import) -> None:
    run = run_of(table(seq_len=["512", "512", "512", "n/a", "n/a", "n/a"]))
    assert run.observations["sequence_length"].isna().tolist() == (
        [False] * 3 + [True] * 3
    )
