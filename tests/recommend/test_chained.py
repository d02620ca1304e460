"""The table of chained jobs beside the rows of an answer."""

from dataclasses import replace

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import refused
from test_by_device import question

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.sentences import sentences
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.by_device import answer
from scalelab.recommend.question.objective import RunSite
from scalelab.site.choice import site_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return sweep((1, 2, 4, 8, 16), per_node=1, seed=5, device_name="p2")


def asked(frame: pd.DataFrame, site: str = "", **asks: float) -> Recommendation:
    settings = {"scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 1}
    known: dict[str | None, RunSite] = {}
    if site:
        place = site_of({**settings, "walltime": site})
        known = {None: RunSite(site=place, devices_on_node=1, is_emulated=False)}
    return answer(replace(question(), **asks), frame, known)  # type: ignore[arg-type]


def test_each_allocation_has_its_jobs_and_their_time(frame: pd.DataFrame) -> None:
    plain = asked(frame)
    limit_s = 1.5 * plain.rows[2].time_s.value  # of 4 devices
    found = asked(frame, walltime_s=limit_s, checkpoint_s=limit_s / 100)
    (kind,) = found.chained_jobs
    jobs = {row["world_size"]: row for row in kind["rows"]}
    assert found.rows == plain.rows
    assert [*jobs] == [row.world_size for row in plain.rows]
    assert kind["checkpoint_s"] == limit_s / 100

    for row in plain.rows:
        chain, time_s = jobs[row.world_size], row.time_s
        overhead_s = chain["time_s"]["value"] - time_s.value
        num_jobs = chain["num_jobs"]
        assert num_jobs >= time_s.hi / limit_s
        # the start-up of the first job is in the time of the row
        between_s = kind["start_up_s"] + kind["checkpoint_s"]
        assert overhead_s <= (num_jobs - 1) * between_s + 1e-6
        assert (overhead_s > 0.5 * between_s) == (num_jobs > 1)
        assert (num_jobs == 1) == (chain["in_one_job"] >= found.confidence)
        hours = chain["time_s"]["value"] * row.world_size / 3600
        assert chain["gpu_hours"]["value"] == pytest.approx(hours)

    alone = [size for size, row in jobs.items() if row["num_jobs"] == 1]
    assert kind["smallest"] == min(alone) == 4


def test_the_limit_of_the_site_counts_where_it_makes_several_jobs(
    frame: pd.DataFrame,
) -> None:
    slowest_s = max(row.time_s.hi for row in asked(frame).rows)
    assert not asked(frame, site=f"{2 * slowest_s + 300:.0f}s").chained_jobs
    short = asked(frame, site=f"{slowest_s / 2:.0f}s")
    assert short.chained_jobs
    assert short.asked_walltime_s is None
    assert any("Chained jobs of at most" in t for t in sentences(short)["chained"])
    # the chosen row ends within one job, so its table is read on request
    chosen = {r["world_size"]: r for r in short.chained_jobs[0]["rows"]}
    is_chained = chosen[short.chosen.world_size]["num_jobs"] > 1
    assert ("time in all" in answer_text(short)) == is_chained
    assert "time in all" in answer_text(short, explain=True)


def test_what_is_asked_counts_for_more_than_the_site(frame: pd.DataFrame) -> None:
    found = asked(frame, site="1d", walltime_s=1e9)
    assert found.asked_walltime_s == 1e9
    assert {row["num_jobs"] for row in found.chained_jobs[0]["rows"]} == {1}
    assert "one job suffices" in answer_text(found)


def test_a_limit_that_leaves_no_time_is_refused(frame: pd.DataFrame) -> None:
    with refused("walltime_too_short", "2 min"):
        asked(frame, walltime_s=120.0, checkpoint_s=119.9)
