"""Input is named as the cause where more devices wait for it, and only there."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from virtual_feed import data_waits

from scalelab.experiment.job import Job
from scalelab.laws.rows import prepared
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.prediction.knee import wait_share
from scalelab.training.feeding.declared_store import DeclaredStore

BATCH, SIZES = 64, (1, 2, 4, 8)
INPUT = "waiting for input"
PICTURE_BYTES = 100_000
STORE = DeclaredStore(open_s=0.002, bytes_per_s=2e8)
"""A picture takes 2.5 ms as a file, and 0.5 ms in a stream."""


def row(
    world_size: int, feed: str, exchange_s: float, **options: int
) -> dict[str, Any]:
    """Return what a trial on the declared store would measure."""
    local = BATCH // world_size
    read_s = {
        "folder": STORE.seconds(local, local * PICTURE_BYTES),
        # A stream that all ranks read whole.
        "tar": STORE.seconds(0, BATCH * PICTURE_BYTES),
    }[feed]
    compute_s = 0.002 + 0.003 * local + exchange_s * (world_size > 1)
    wait_s = float(np.mean(data_waits([read_s] * 20, compute_s, **options)[5:]))
    return {
        "world_size": world_size,
        "local_batch_size": local,
        "step_time_s": compute_s + wait_s,
        "data_wait_s": wait_s,
        "options.feed": feed,
    }


def rows(feed: str, exchange_s: float = 0.0, **options: int) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    made = [row(size, feed, exchange_s, **options) for size in SIZES for _ in range(3)]
    for each in made:
        each["step_time_s"] *= math.exp(0.01 * rng.standard_normal())
    return pd.DataFrame(made)


def cause(table: pd.DataFrame) -> str:
    answer: Recommendation = recommend(table, Job(samples=1e6), devices_on_node=8)
    assert answer.knee is not None
    assert answer.knee.lo is not None
    return answer.knee.term


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}])
def test_a_stream_that_every_rank_reads_whole_is_the_cause(
    options: dict[str, int],
) -> None:
    assert cause(rows("tar", **options)) == INPUT


@pytest.mark.slow
def test_input_is_not_named_where_something_else_costs_more() -> None:
    # Each rank reads its own files: twice the ranks wait half as long.
    assert cause(rows("folder", exchange_s=0.1)) != INPUT
    # The stream is waited for, but the exchange of gradients takes far longer.
    assert cause(rows("tar", exchange_s=0.3)) != INPUT
    # Loader processes read it while the rank computes.
    assert cause(rows("tar", exchange_s=0.1, prefetch=2, loader_workers=4)) != INPUT


@pytest.mark.slow
def test_input_is_not_named_where_it_was_not_measured() -> None:
    table = rows("tar").drop(columns="data_wait_s")
    assert cause(table) != INPUT


def shares(table: pd.DataFrame, sizes: Sequence[int], **asked: object) -> list[float]:
    measured = prepared(table)
    return [
        wait_share(
            measured,
            pd.DataFrame(
                [{"world_size": size, "local_batch_size": BATCH // size, **asked}]
            ),
        )
        for size in sizes
    ]


def test_shares_are_medians_of_their_curve() -> None:
    table = pd.concat([rows("tar"), rows("folder")])
    expected = rows("tar")
    expected["share"] = expected["data_wait_s"] / expected["step_time_s"]
    medians = expected.groupby("world_size")["share"].median()
    asked = {"options.feed": "tar"}
    assert shares(table, SIZES, **asked) == pytest.approx(medians.tolist())
    # Beyond what was measured it stays as it is there.
    assert shares(table, [32], **asked) == pytest.approx([medians[8]])


def test_rows_without_waits_tell_nothing() -> None:
    table = rows("tar").assign(data_wait_s=np.nan)
    assert shares(table, SIZES, **{"options.feed": "tar"}) == [0.0] * 4
