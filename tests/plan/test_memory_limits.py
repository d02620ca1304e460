from typing import Any

import pytest

from scalelab.plan.memory_limits import limits_in_words, memory_limits


def row(local_batch: int, outcome: str = "completed", **values: Any) -> dict[str, Any]:
    return {
        "trial_id": "t",
        "outcome": outcome,
        "local_batch_size": local_batch,
        "world_size": 1,
        "precision": "fp32",
        "parallelism": "ddp",
    } | values


def unfitting(local_batch: int, **values: Any) -> dict[str, Any]:
    return row(local_batch, "out_of_memory", **values)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(32), row(64)], []),
        (
            [row(32), row(16), unfitting(64), unfitting(64), unfitting(128)],
            ["Local batch 64 did not fit into memory; 32 did."],
        ),
        ([unfitting(64)], ["Local batch 64 did not fit into memory."]),
        (
            [row(32), row(64, "failed"), unfitting(128), row(256)],
            ["Local batch 128 did not fit into memory; 32 did."],
        ),
        (
            [row(32), unfitting(64), row(64, precision="bf16")],
            ["Local batch 64 did not fit into memory; 32 did (precision fp32)."],
        ),
        (
            [
                row(32, parallelism="fsdp"),
                unfitting(64, parallelism="fsdp"),
                row(64, parallelism="fsdp", world_size=2),
            ],
            ["Local batch 64 did not fit into memory; 32 did (1 device)."],
        ),
        (
            [unfitting(64, world_size=2), row(32)],
            ["Local batch 64 did not fit into memory; 32 did."],
        ),
    ],
)
def test_what_did_not_fit_is_said_beside_what_did(
    rows: list[dict[str, Any]], said: list[str]
) -> None:
    assert limits_in_words(memory_limits(rows)) == said


def test_of_many_settings_the_first_are_named() -> None:
    limits = memory_limits(unfitting(64, **{"options.size": size}) for size in range(5))
    assert [limit.num_trials for limit in limits] == [1] * 5
    said = limits_in_words(limits)
    assert said[0] == "Local batch 64 did not fit into memory (size 0)."
    assert said[-1] == "So in 2 further settings."
