"""Merged cells of a spreadsheet hold for all of their rows."""

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


def test_a_value_holds_for_the_empty_cells_below(run_of: Import) -> None:
    run = run_of(table(model=["resnet", "", "", "vgg", "", ""]))
    assert run.observations["workload"].tolist() == ["resnet"] * 3 + ["vgg"] * 3
    assert "Read empty cells of 'model' as the value above: 4 rows." in run.import_notes
    assert run.import_doubts == ()


def test_cells_merged_within_merged_cells_may_be_alike(run_of: Import) -> None:
    run = run_of(
        table(
            model=["resnet", "", "", "vgg", "", ""],
            gpu=["A100", "", "", "A100", "", ""],
            framework=["torch", "", "", "jax", "", ""],
        )
    )
    assert set(run.observations["device_name"]) == {"A100"}
    assert run.observations["options.framework"].tolist() == (
        ["torch"] * 3 + ["jax"] * 3
    )
    assert len(run.fit_rows.curves) == 2


def test_a_setting_that_is_empty_now_and_then_is_not_used_there(run_of: Import) -> None:
    run = run_of(table(compile=["inductor", "inductor", "inductor", "", "", ""]))
    assert run.observations["options.compile"].isna().tolist() == (
        [False] * 3 + [True] * 3
    )
    assert "value above" not in " ".join(run.import_notes)


def test_the_rows_of_a_melted_line_share_its_value(run_of: Import) -> None:
    text = "model,precision,1 GPU,2 GPUs\nvgg,bf16,90,170\n,fp32,50,95\nbert,bf16,9,17"
    run = run_of(
        text,
        melt={"world_size": "throughput_samples_per_s"},
        constant={"gpus_per_node": "8", "local_batch_size": "32"},
    )
    assert run.observations["workload"].tolist() == ["vgg"] * 4 + ["bert"] * 2
    assert "Read empty cells of 'model' as the value above: 1 row." in run.import_notes


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"model": ["", "", "vgg", "", "bert", ""]},
            r"resnet50\.csv: the column 'model' is empty in lines 2, 3, above its "
            r"first value, 'vgg' in line 4\. .* every row, or at least in the first\.",
        ),
        (
            {"tp": ["", "2", "", "4", "", ""]},
            r"the column 'tp' is empty in line 2, above its first value, '2' in line 3",
        ),
        (
            {"precision": ["bf16", "", "bf16", "", "bf16", ""]},
            r"the column 'precision' is empty in lines 3, 5, 7\. These are no merged "
            r"cells: 'bf16' stands in line 4 again\. .* write the value in every row\.",
        ),
    ],
)
def test_other_empty_cells_are_refused(
    run_of: Import, columns: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        run_of(table(**columns))
