from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptSpec, NodeShare, Placement
from scalelab.records.columns import COLUMNS, COLUMNS_BY_NAME


def test_ranks_are_numbered_node_after_node() -> None:
    shares = (("n0", ("0", "1")), ("n1", ("0",)), ("n2", ("4", "5")))
    placement = Placement(
        shares=tuple(NodeShare(node=node, device_ids=ids) for node, ids in shares)
    )
    assert placement.world_size == 5
    assert [placement.first_rank(node) for node in range(3)] == [0, 2, 3]


@pytest.mark.parametrize("outcome", Outcome)
def test_a_measurement_is_never_retried(outcome: Outcome) -> None:
    assert not (outcome.is_measurement and outcome.is_retried)


def test_the_files_of_an_attempt(make_spec: Callable[..., Any]) -> None:
    spec: AttemptSpec = make_spec()
    files = spec.files
    assert files.directory == Path(spec.directory)
    paths = [files.spec, files.stream, files.result, files.checkpoint, files.log(3)]
    names = [
        "attempt.json",
        "stream.jsonl",
        "result.json",
        "checkpoint",
        "rank-3.log",
    ]
    assert paths == [files.directory / name for name in names]
    assert spec.attempt_id == f"{spec.trial.trial_id}-1"


def test_columns_are_named_once_and_explained() -> None:
    assert len(COLUMNS) == len(COLUMNS_BY_NAME)
    kinds = {"text", "integer", "number", "flag", "time", "list"}
    for column in COLUMNS:
        assert column.kind in kinds
        assert column.meaning.endswith(".")
