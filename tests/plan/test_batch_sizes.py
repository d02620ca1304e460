import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.errors import SpecError
from scalelab.plan.configurations import BatchRequest

COUNTS = st.integers(1, 300)


@given(world_size=COUNTS, local=COUNTS, steps=COUNTS)
def test_every_batch_obeys_the_arithmetic(
    world_size: int, local: int, steps: int
) -> None:
    total = world_size * local * steps
    for request in (
        BatchRequest(local_batch_size=local, gradient_accumulation_steps=steps),
        BatchRequest(local_batch_size=local, global_batch_size=total),
        BatchRequest(global_batch_size=total, gradient_accumulation_steps=steps),
    ):
        assert request.at(world_size) == (local, steps)


@given(world_size=COUNTS, per_rank=COUNTS, largest=COUNTS)
def test_the_found_batch_fits_and_divides(
    world_size: int, per_rank: int, largest: int
) -> None:
    request = BatchRequest(global_batch_size=world_size * per_rank)

    local, steps = request.at(world_size, largest)

    assert local <= largest
    assert local * steps == per_rank
    larger = range(local + 1, min(largest, per_rank) + 1)
    assert not any(per_rank % size == 0 for size in larger)


def test_the_found_batch_is_the_local_one_in_weak_scaling() -> None:
    assert BatchRequest().at(8, 24) == (24, 1)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            BatchRequest(local_batch_size=16, global_batch_size=100),
            "global_batch_size=100 is not divisible by data_parallel_size=8 * "
            "local_batch_size=16 (=128). Use a multiple of 128 or change "
            "local_batch_size.",
        ),
        (
            BatchRequest(global_batch_size=100),
            "global_batch_size=100 is not divisible by data_parallel_size=8. Use a "
            "multiple of 8 or change the number of devices.",
        ),
        (
            BatchRequest(global_batch_size=100, gradient_accumulation_steps=2),
            "global_batch_size=100 is not divisible by data_parallel_size=8 * "
            "gradient_accumulation_steps=2 (=16). Use a multiple of 16 or change the "
            "number of devices.",
        ),
    ],
)
def test_what_does_not_divide_is_refused(request_: BatchRequest, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        request_.at(8)
