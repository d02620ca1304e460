import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from gang import RankFailure, run_in_gang

from scalelab.training.rank import (
    memory_limit,
    peak_resident_bytes,
    resident_bytes,
)

MEGABYTE = 2**20


def allocate(_who: Any, _rendezvous: Any, limit_bytes: Any, num_bytes: Any) -> Any:
    with memory_limit(limit_bytes):
        torch.zeros(num_bytes, dtype=torch.uint8)
    return peak_resident_bytes() - resident_bytes()


def test_allocation_within_the_limit_is_left_alone(tmp_path: Path) -> None:
    (freed,) = run_in_gang(
        1, allocate, 300 * MEGABYTE, 100 * MEGABYTE, directory=tmp_path
    )
    assert freed > 90 * MEGABYTE


def test_allocation_beyond_the_limit_is_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(
        RankFailure, match=r"OutOfMemoryError: memory_limit_bytes=10485"
    ):
        run_in_gang(1, allocate, 100 * MEGABYTE, 300 * MEGABYTE, directory=tmp_path)


def test_without_a_limit_the_host_is_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(RankFailure, match=r"MemoryError: .*allocate"):
        run_in_gang(1, allocate, None, 2**50, directory=tmp_path)


@pytest.mark.parametrize(
    ("limit_bytes", "error", "raised"),
    [
        (2**30, MemoryError("host"), torch.OutOfMemoryError),
        (2**30, torch.OutOfMemoryError("device"), torch.OutOfMemoryError),
        (None, torch.OutOfMemoryError("device"), torch.OutOfMemoryError),
        (None, MemoryError("host"), MemoryError),
        (2**30, RuntimeError("other"), RuntimeError),
    ],
)
def test_errors_are_told_apart(
    limit_bytes: int | None,
    error: MemoryError | RuntimeError | torch.OutOfMemoryError,
    raised: type[Any],
) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with (
        pytest.raises(raised, match=r"host|device|other") as caught,
        memory_limit(limit_bytes),
    ):
        raise error
    assert type(caught.value) is raised
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
