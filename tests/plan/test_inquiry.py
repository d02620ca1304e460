"""What a source is to find out, in words."""

import pytest

from scalelab.inputs.numerals import DeviceWords
from scalelab.plan.inquiry import (
    Ending,
    Inquiry,
    NextProbe,
    Purpose,
    in_a_line,
    in_lines,
)

GPUS = DeviceWords("GPU", "GPU-h")
PROBE = NextProbe(
    allocation="2x32",
    world_size=64,
    local_batch_size=128,
    num_steps=52,
    gpu_hours=0.4,
    purpose=Purpose.DECIDES,
    settles=0.6,
)


def test_a_line_says_what_is_open_and_what_would_settle_it() -> None:
    inquiry = Inquiry(likely=(32, 64), pick=32, surety=0.4, following=PROBE)
    assert in_a_line(inquiry, GPUS) == (
        "32 or 64 GPUs: 2x32 with local batch 128, 0.40 GPU-h, would settle 60% of "
        "what is open"
    )


def test_nothing_is_claimed_before_anything_is_known() -> None:
    probe = NextProbe(
        allocation="1x1",
        world_size=1,
        local_batch_size=128,
        num_steps=52,
        gpu_hours=None,
        purpose=Purpose.FIRST,
        settles=None,
    )
    assert [*in_lines(Inquiry(following=probe), GPUS)] == [
        "Nothing is known yet: 1x1 with local batch 128, a start-up and 52 steps of 1 "
        "GPU, to begin with."
    ]
    assert in_a_line(Inquiry(), GPUS) == (
        "nothing is known yet: waiting for trials that run"
    )


@pytest.mark.parametrize("ending", Ending)
def test_the_end_says_why_how_sure_it_is_and_what_was_saved(ending: Ending) -> None:
    inquiry = Inquiry(
        likely=(1,),
        pick=1,
        surety=0.93,
        following=PROBE,
        ending=ending,
        spent_gpu_hours=0.5,
        grid_gpu_hours=6.0,
    )
    first, sure, *more, saved = in_lines(inquiry, GPUS)
    assert first.startswith("1 GPU: ")
    assert sure == "P(1 GPU: at most 5% worse than the best) = 93%."
    assert saved == "Trials took 0.50 GPU-h; the whole grid would take about 6 GPU-h."
    assert bool(more) == (ending is Ending.SPENT)
    if more:
        assert more[0].startswith("A little more would buy 2x32 with local batch 128")


def test_the_first_trial_on_several_nodes_asks_for_their_link() -> None:
    inquiry = Inquiry(likely=(8,), following=PROBE, asks_for_link=True)
    assert any(
        "between_nodes under question" in line for line in in_lines(inquiry, GPUS)
    )
