import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.laws.memory import MemoryLaw

GIB = 2**30


def rows(**columns):
    return pd.DataFrame(
        {
            "workload": "resnet",
            "local_batch_size": [16, 32, 64, 128],
            "outcome": ["completed", "completed", "completed", "out_of_memory"],
            "world_size": 1,
            **columns,
        }
    )


def largest(law, capacity=None, **columns):
    asked = pd.DataFrame({"workload": ["resnet"], **columns})
    return law.largest_local_batch(asked, capacity)


def test_the_largest_that_ran_is_the_answer():
    answer = largest(MemoryLaw.fit(rows()))
    assert answer["largest_local_batch"].item() == 64
    assert answer["smallest_failing"].item() == 128


def test_measured_peaks_let_the_answer_go_further_but_not_to_a_failure():
    peaks = [3.0 * GIB, 5.0 * GIB, 9.0 * GIB, None]
    law = MemoryLaw.fit(rows(gpu_memory_peak_bytes=peaks))
    (curve,) = law.curves.values()
    assert curve.fixed_bytes == pytest.approx(1 * GIB)
    assert largest(law, 16 * GIB)["largest_local_batch"].item() == int(
        (0.95 * 16 - 1) * 8
    )
    assert largest(law, 80 * GIB)["largest_local_batch"].item() == 127
    assert largest(law, 4 * GIB)["largest_local_batch"].item() == 64


def test_a_batch_that_failed_once_is_not_planned_with():
    law = MemoryLaw.fit(rows(outcome=["completed", "out_of_memory"] * 2))
    assert largest(law)["largest_local_batch"].item() == 31


def test_nothing_fits_where_everything_failed():
    law = MemoryLaw.fit(rows(outcome="out_of_memory"))
    answer = largest(law)
    assert answer["largest_local_batch"].item() == 0
    assert answer["smallest_failing"].item() == 16


def test_an_unknown_workload_has_no_answer():
    law = MemoryLaw.fit(rows())
    asked = pd.DataFrame({"workload": ["bert"]})
    answer = law.largest_local_batch(asked)
    assert answer["largest_local_batch"].item() == 0
    assert answer["smallest_failing"].isna().item()


def test_only_sharding_makes_memory_depend_on_ranks():
    sharded = rows(parallelism="fsdp", world_size=[1, 1, 4, 4])
    law = MemoryLaw.fit(sharded)
    four = largest(law, parallelism="fsdp", world_size=4)
    assert four["largest_local_batch"].item() == 64
    one = largest(law, parallelism="fsdp", world_size=1)
    assert one["largest_local_batch"].item() == 32
    replicated = MemoryLaw.fit(rows(parallelism="ddp", world_size=[1, 1, 4, 4]))
    anywhere = largest(replicated, parallelism="ddp", world_size=64)
    assert anywhere["largest_local_batch"].item() == 64


def test_other_outcomes_say_nothing_about_memory():
    with pytest.raises(FitError, match="No row completed or ran out of memory"):
        MemoryLaw.fit(rows(outcome="failed"))


def test_a_table_without_outcomes_ran():
    law = MemoryLaw.fit(rows().drop(columns="outcome"))
    assert largest(law)["largest_local_batch"].item() == 128
