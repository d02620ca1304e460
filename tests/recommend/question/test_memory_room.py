import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.inputs.allocation import Allocation
from scalelab.recommend.advice import recommend
from scalelab.recommend.question.memory_room import MemoryRoom
from scalelab.recommend.question.objective import Constraints

GIB = 2**30
JOB = Job(epochs=10, samples_per_epoch=1_000_000)
ONE = [Allocation.packed(1, devices_on_node=8)]


def sharded(capacity_gib: float | None = None, **columns: object) -> pd.DataFrame:
    """A sweep on 2, 4 and 8 devices that share 8 GiB of state between them."""
    frame = sweep((2, 4, 8), per_node=8, parallelism="fsdp", **columns)
    peak = 1 + 8 / frame["world_size"] + frame["local_batch_size"] / 8
    frame["gpu_memory_peak_bytes"] = peak * GIB
    if capacity_gib is not None:
        frame["gpu_memory_bytes"] = capacity_gib * GIB
    return frame


def batch_on_one(frame: pd.DataFrame) -> int | None:
    """Return the local batch proposed for one device."""
    rows = recommend(frame, JOB, allocations=ONE).rows
    found = [r.batch.local_batch_size for r in rows if r.world_size == 1]
    return found[0] if found else None


@pytest.mark.slow
def test_without_a_capacity_only_what_ran_fits() -> None:
    assert batch_on_one(sharded()) is None
    assert MemoryRoom.of(sharded()).capacity_bytes is None


@pytest.mark.slow
@pytest.mark.parametrize(("capacity_gib", "batch"), [(16, 32), (12, 16), (10, None)])
def test_measured_peaks_allow_what_fits_on_fewer_devices(
    capacity_gib: int, batch: int | None
) -> None:
    assert batch_on_one(sharded(capacity_gib)) == batch


@pytest.mark.slow
def test_what_ran_out_of_memory_is_not_proposed_whatever_the_peaks_say() -> None:
    frame = sharded(80)
    failed = frame.iloc[[0]].assign(
        local_batch_size=32, outcome="out_of_memory", step_time_s=None
    )
    assert batch_on_one(pd.concat([frame, failed], ignore_index=True)) == 16


@pytest.mark.slow
def test_no_batch_above_the_measured_ones_is_proposed() -> None:
    found = recommend(sharded(1000), JOB)
    assert {r.batch.local_batch_size for r in found.rows} <= {8, 16, 32}


@pytest.mark.slow
def test_the_device_with_least_memory_counts() -> None:
    frame = sharded(80)
    frame.loc[3, "gpu_memory_bytes"] = 12 * GIB
    frame.loc[4, "gpu_memory_bytes"] = None
    assert MemoryRoom.of(frame).capacity_bytes == 12 * GIB
    assert batch_on_one(frame) == 16


@pytest.mark.slow
def test_the_answer_says_that_a_batch_rests_on_peaks() -> None:
    frame = sharded(16)
    cheap = Constraints(limits={"device_hours": 1e-3})
    found = recommend(frame, JOB, allocations=ONE, constraints=cheap)
    assert found.chosen.world_size == 1  # nothing is cheap enough, this is closest
    assert (
        "Not tried: local batch 32 there; by measured peaks it takes 13 of the 16 GiB "
        "of a GPU." in found.notes
    )
    measured = recommend(frame, JOB)
    assert not any(note.startswith("Not tried") for note in measured.notes)
