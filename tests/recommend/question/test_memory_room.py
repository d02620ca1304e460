import pandas as pd
import pytest
from made_up_sweeps import sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.question.memory_room import MemoryRoom

GIB = 2**30
JOB = Job(epochs=10, samples_per_epoch=1_000_000)


def sharded(capacity_gib: float | None = None, **columns: object) -> pd.DataFrame:
    """A sweep on 2, 4 and 8 devices that share 8 GiB of state between them."""
    frame = sweep((2, 4, 8), per_node=8, parallelism="fsdp", **columns)
    peak = 1 + 8 / frame["world_size"] + frame["local_batch_size"] / 8
    frame["gpu_memory_peak_bytes"] = peak * GIB
    if capacity_gib is not None:
        frame["gpu_memory_bytes"] = capacity_gib * GIB
    return frame


def on_one(*local_batches: int) -> pd.DataFrame:
    """Configurations of one device."""
    return sweep((1,), global_batch=None, local_batches=local_batches, repeats=1)


def batch_on_one(frame: pd.DataFrame) -> int | None:
    """Return the largest local batch that is known to fit on one device."""
    tried = on_one(8, 16, 32)
    fits = MemoryRoom.of(frame).fits(tried)
    return max(tried["local_batch_size"][fits], default=None)


def test_without_a_capacity_only_what_ran_fits() -> None:
    assert batch_on_one(sharded()) is None
    assert MemoryRoom.of(sharded()).capacity_bytes is None


@pytest.mark.parametrize(("capacity_gib", "batch"), [(16, 32), (12, 16), (10, None)])
def test_measured_peaks_allow_what_fits_on_fewer_devices(
    capacity_gib: int, batch: int | None
) -> None:
    assert batch_on_one(sharded(capacity_gib)) == batch


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


def test_the_device_with_least_memory_counts() -> None:
    frame = sharded(80)
    frame.loc[3, "gpu_memory_bytes"] = 12 * GIB
    frame.loc[4, "gpu_memory_bytes"] = None
    assert MemoryRoom.of(frame).capacity_bytes == 12 * GIB
    assert batch_on_one(frame) == 16


def test_it_is_said_that_a_batch_rests_on_peaks() -> None:
    room = MemoryRoom.of(sharded(16))
    (fact,) = room.notes(on_one(32))
    assert fact.kind == "not_tried"
    assert fact.values["local_batch_size"] == 32
    assert fact.values["peak_bytes"] == pytest.approx(13 * GIB, rel=0.01)
    assert fact.values["capacity_bytes"] == 16 * GIB
    measured = sharded(16).query("world_size == 2 and local_batch_size == 32")
    assert not list(room.notes(measured.iloc[[0]]))
