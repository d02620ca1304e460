import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.laws.memory.law import MemoryLaw

GIB = 2**30


def rows(**columns: int | list[float | int | str | None] | str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "workload": "resnet",
            "local_batch_size": [16, 32, 64, 128],
            "outcome": ["completed", "completed", "completed", "out_of_memory"],
            "world_size": 1,
            **columns,
        }
    )


def largest(
    law: MemoryLaw, capacity: float | None = None, **columns: int | str
) -> pd.DataFrame:
    asked = pd.DataFrame({"workload": ["resnet"], **columns})
    return law.largest_local_batch(asked, capacity)


def test_the_largest_that_ran_is_the_answer() -> None:
    answer = largest(MemoryLaw.fit(rows()))
    assert answer["largest_local_batch"].item() == 64


def test_measured_peaks_let_the_answer_go_further_but_not_to_a_failure() -> None:
    peaks = [3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None]
    law = MemoryLaw.fit(rows(gpu_memory_peak_bytes=peaks))
    (curve,) = law.curves.values()
    assert curve.peaks.terms == pytest.approx([1 * GIB, 0, GIB / 8])
    assert largest(law, 16 * GIB)["largest_local_batch"].item() == int(
        (0.95 * 16 - 1) * 8
    )
    assert largest(law, 80 * GIB)["largest_local_batch"].item() == 127
    assert largest(law, 4 * GIB)["largest_local_batch"].item() == 64


def test_a_batch_that_failed_once_is_not_planned_with() -> None:
    law = MemoryLaw.fit(rows(outcome=["completed", "out_of_memory"] * 2))
    assert largest(law)["largest_local_batch"].item() == 31


def test_nothing_fits_where_everything_failed() -> None:
    law = MemoryLaw.fit(rows(outcome="out_of_memory"))
    assert largest(law)["largest_local_batch"].item() == 0
    (curve,) = law.curves.values()
    assert curve.smallest_failing(1) == 16


def test_an_unknown_workload_has_no_answer() -> None:
    law = MemoryLaw.fit(rows())
    asked = pd.DataFrame({"workload": ["bert"]})
    answer = law.largest_local_batch(asked)
    assert answer["largest_local_batch"].item() == 0


def test_only_sharding_makes_memory_depend_on_ranks() -> None:
    sharded = rows(parallelism="fsdp", world_size=[1, 1, 4, 4])
    law = MemoryLaw.fit(sharded)
    four = largest(law, parallelism="fsdp", world_size=4)
    assert four["largest_local_batch"].item() == 64
    one = largest(law, parallelism="fsdp", world_size=1)
    assert one["largest_local_batch"].item() == 32
    replicated = MemoryLaw.fit(rows(parallelism="ddp", world_size=[1, 1, 4, 4]))
    anywhere = largest(replicated, parallelism="ddp", world_size=64)
    assert anywhere["largest_local_batch"].item() == 64


def test_other_outcomes_say_nothing_about_memory() -> None:
    with pytest.raises(
        FitError, match="No row with a local_batch_size completed or ran out of memory"
    ):
        MemoryLaw.fit(rows(outcome="failed"))


def test_a_table_without_outcomes_ran() -> None:
    law = MemoryLaw.fit(rows().drop(columns="outcome"))
    assert largest(law)["largest_local_batch"].item() == 128


def test_the_terms_of_sharding_come_back() -> None:
    sizes = [(n, b) for n in (1, 2, 4, 8) for b in (8, 16)]
    peaks = [(2 + 12 / n + 0.25 * b) * GIB for n, b in sizes]
    frame = pd.DataFrame(
        {
            "workload": "lm",
            "parallelism": "fsdp",
            "world_size": [n for n, _ in sizes],
            "local_batch_size": [b for _, b in sizes],
            "gpu_memory_peak_bytes": peaks,
        }
    )
    law = MemoryLaw.fit(frame)
    (curve,) = law.curves.values()
    assert curve.peaks.terms == pytest.approx([2 * GIB, 12 * GIB, 0.25 * GIB])
    asked = frame[["workload", "parallelism"]].iloc[:3].assign(world_size=[1, 8, 64])
    answer = law.largest_local_batch(asked, 16 * GIB)["largest_local_batch"]
    assert answer.tolist() == [16, 46, 52]
    predicted = law.predict(asked.assign(local_batch_size=32))["peak_bytes"]
    assert predicted.tolist() == pytest.approx([22 * GIB, 11.5 * GIB, 10.1875 * GIB])


def test_peaks_of_one_sharding_plan_nothing_for_fewer_ranks() -> None:
    peaks = [3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None]
    frame = rows(parallelism="fsdp", world_size=4, gpu_memory_peak_bytes=peaks)
    law = MemoryLaw.fit(frame.assign(outcome="completed"))
    batches = [
        largest(law, 80.05 * GIB, parallelism="fsdp", world_size=ranks)
        for ranks in (2, 4, 8)
    ]
    assert [answer["largest_local_batch"].item() for answer in batches] == [0, 600, 600]


def test_what_ran_on_fewer_ranks_runs_on_more_and_the_other_way_round() -> None:
    sharded = rows(parallelism="fsdp", world_size=[2, 2, 2, 8])
    law = MemoryLaw.fit(sharded)
    more = largest(law, parallelism="fsdp", world_size=16)
    assert more["largest_fitting"].item() == 64
    fewer = largest(law, parallelism="fsdp", world_size=1)
    assert fewer["largest_fitting"].item() == 0
    (curve,) = law.curves.values()
    assert curve.smallest_failing(16) is None
    assert curve.smallest_failing(1) == 128


def test_precisions_are_apart_and_an_unmeasured_one_has_no_answer() -> None:
    halves = rows(precision="bf16", local_batch_size=[32, 64, 128, 256])
    law = MemoryLaw.fit(pd.concat([rows(precision="fp32"), halves]))
    assert largest(law, precision="fp32")["largest_local_batch"].item() == 64
    assert largest(law, precision="bf16")["largest_local_batch"].item() == 128
    assert largest(law, precision="fp16")["largest_local_batch"].item() == 0
    assert largest(law)["largest_local_batch"].item() == 64


def test_scattered_peaks_leave_more_room() -> None:
    exact = [3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None]
    rough = [3.3 * GIB, 4.6 * GIB, 9.3 * GIB, None]
    plans = [
        largest(MemoryLaw.fit(rows(gpu_memory_peak_bytes=peaks)), 15 * GIB)[
            "largest_local_batch"
        ].item()
        for peaks in (exact, rough)
    ]
    assert plans[1] < plans[0]


def test_units_order_and_duplicates_do_not_matter() -> None:
    frame = rows(gpu_memory_peak_bytes=[3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None])
    plain = largest(MemoryLaw.fit(frame), 16 * GIB)
    for other in (frame.iloc[::-1], pd.concat([frame, frame])):
        pd.testing.assert_frame_equal(largest(MemoryLaw.fit(other), 16 * GIB), plain)
    kib = frame.assign(gpu_memory_peak_bytes=frame["gpu_memory_peak_bytes"] / 1024)
    pd.testing.assert_frame_equal(largest(MemoryLaw.fit(kib), 16 * GIB / 1024), plain)


def test_one_peak_says_nothing_of_others() -> None:
    law = MemoryLaw.fit(rows(gpu_memory_peak_bytes=[3.0 * GIB, None, None, None]))
    asked = pd.DataFrame({"workload": ["resnet", "bert"], "local_batch_size": 8})
    assert law.predict(asked)["peak_bytes"].isna().all()
    assert largest(law, 80 * GIB)["largest_local_batch"].item() == 64


def test_a_failure_of_unknown_device_bounds_every_curve_it_may_belong_to() -> None:
    """A trial on a real GPU runs out of memory before it has told its device."""
    table = rows(
        gpu_memory_peak_bytes=[3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None],
        device_name=["H100", "H100", "H100", None],
        node_group="a",
    )
    other = table.iloc[:3].assign(node_group="b")
    law = MemoryLaw.fit(pd.concat([table, other]))
    on_both = {"node_group": ["a", "b"], "device_name": "H100"}
    asked = pd.DataFrame({"workload": "resnet", **on_both})

    answer = law.largest_local_batch(asked, 81 * GIB)
    assert answer["largest_local_batch"].tolist() == [127, int((0.95 * 81 - 1) * 8)]
    assert answer["largest_fitting"].tolist() == [64, 64]
