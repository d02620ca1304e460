"""A figure that another source contradicts is not sure, and not chosen by default."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_sweeps import sweep
from sentences import Golden

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text
from scalelab.report.budget import picture
from scalelab.session import import_table
from scalelab.session.run import Run

# tokens per second and GPU, by GPUs: 128 were measured ten times too slow
RATES = {8: 9800, 16: 9400, 32: 9150, 64: 8700, 128: 820, 256: 6900}
QUESTION = {"job": {"samples": 250_000_000}, "price": "2.5usd"}


def table_of(
    rates: dict[int, float], home: Path, *, axis: str = "", **columns: Any
) -> Run:
    rows = pd.DataFrame(
        {
            "gpu_type": "H100",
            "gpus": [*rates],
            "nodes": [-(-size // 8) for size in rates],
            "global_batch": 512,
            "seq_len": 4096,
            "tokens_per_s_per_gpu": [*rates.values()],
            **columns,
        }
    )
    path = home / "table.csv"
    rows.to_csv(path, index=False)
    return import_table(path, home / "run", axis=axis or [])


def doubted(answer: Recommendation) -> Any:
    (values,) = (fact.values for fact in answer.facts if fact.kind == "doubted")
    return values


def grounds(answer: Recommendation) -> dict[str, str]:
    return {ground.kind: ground.state for ground in answer.grounds}


@pytest.mark.parametrize("limits", [{"max_time": "21d"}, {}])
def test_a_row_that_was_left_out_is_not_sure_and_not_chosen(
    tmp_path: Path, limits: dict[str, str]
) -> None:
    answer = table_of(RATES, tmp_path).recommend(**QUESTION, **limits)
    assert answer.chosen.world_size == 256
    assert answer.chosen.basis == "measured"

    (row,) = (row for row in answer.rows if row.world_size == 128)
    assert (row.is_eligible, row.barred_by) == (False, "doubted")
    assert row.probability is None or row.probability <= 0.5
    values = doubted(answer)
    assert (values["neighbours"], values["num_runs"]) == ([64, 256], 1)
    assert 9 < values["factor"] < 11
    assert grounds(answer)["doubted"] == "contradicted"
    assert "ignored" not in grounds(answer)


def test_the_first_picture_shows_what_was_left_out(tmp_path: Path) -> None:
    answer = table_of(RATES, tmp_path).recommend(**QUESTION, max_time="21d")
    drawn = picture(answer)
    assert drawn is not None
    points = {point["name"]: point for point in drawn["points"]}
    left_out, predicted = points["128 left out"], points["128"]
    factor = doubted(answer)["factor"]
    for name in ("x", "y"):
        assert left_out[name] == pytest.approx(factor * predicted[name])
    assert left_out["look"] == "doubted"
    ends = {"x": left_out["x"], "y": left_out["y"]}
    for name, value in ends.items():
        axis = drawn[name]
        at = math.log10(value) if axis["type"] == "log" else value
        assert axis["range"][0] < at < axis["range"][1]


def test_an_import_names_the_row_and_a_clean_table_has_none(
    tmp_path: Path, golden: Golden
) -> None:
    (tmp_path / "clean").mkdir()
    (said,) = table_of(RATES, tmp_path).doubted_rows
    golden(said)
    assert "64 and 256" in said
    assert table_of(RATES | {128: 8000}, tmp_path / "clean").doubted_rows == ()


def test_neighbours_are_named_where_there_is_one_on_each_side(tmp_path: Path) -> None:
    answer = table_of(RATES | {128: 8000, 256: 700}, tmp_path).recommend(**QUESTION)
    assert doubted(answer)["world_size"] == 256
    assert doubted(answer)["neighbours"] == []


def test_more_nodes_that_are_slower_do_not_lie_between_neighbours(
    tmp_path: Path,
) -> None:
    rates = {2: 4409, 4: 4491, 8: 4548, 16: 2101, 24: 1316}
    columns = {"global_batch": [*rates], "strategy": "FULL_SHARD"}
    answer = table_of(rates, tmp_path, **columns).recommend(job={"samples": 10**7})
    (fact,) = (fact for fact in answer.facts if fact.kind == "uneven")
    assert (fact.values["world_size"], fact.values["is_between"]) == (24, False)
    assert grounds(answer)["uneven"] == "open"


def test_a_doubt_names_the_setting_that_it_belongs_to(tmp_path: Path) -> None:
    both = RATES | {128: 8000}
    rows = pd.DataFrame(
        [(n, rate, "b") for n, rate in both.items()]
        + [(n, rate, "a") for n, rate in RATES.items()],
        columns=["gpus", "rate", "setting"],
    )
    path = tmp_path / "table.csv"
    rows.assign(nodes=-(-rows["gpus"] // 8), global_batch=512).to_csv(path, index=False)
    renamed = {"throughput_samples_per_s": "rate"}
    run = import_table(
        path, tmp_path / "run", column=renamed, axis="setting", per_device=True
    )
    answer = run.recommend(job={"samples": 10**9}, max_time="30d")
    assert doubted(answer)["curve"] == "setting=a"
    # the row of the other setting is as sure as it was measured
    (row,) = (row for row in answer.rows if row.world_size == 128)
    assert row.settings == {"setting": "b"}
    assert row.barred_by is None


def test_repeats_are_other_runs(tmp_path: Path, golden: Golden) -> None:
    rates = [9800, 9800, 9400, 9400, 9150, 9150, 8700, 8700, 820, 8000, 8000, 6900]
    sizes = [8, 8, 16, 16, 32, 32, 64, 64, 128, 128, 128, 256]
    rows = {"gpus": sizes, "nodes": [-(-n // 8) for n in sizes], "rate": rates}
    path = tmp_path / "table.csv"
    pd.DataFrame({**rows, "global_batch": 512}).to_csv(path, index=False)
    renamed = {"throughput_samples_per_s": "rate"}
    run = import_table(
        path, tmp_path / "run", column=renamed, per_device=True, accept_doubts=True
    )
    (said,) = run.doubted_rows
    golden(said)
    answer = run.recommend(job={"samples": 10**9})
    assert grounds(answer)["contradicting"] == "contradicted"
    (row,) = (row for row in answer.rows if row.world_size == 128)
    assert row.barred_by is None  # two runs of three agree


def alike(sizes: tuple[int, ...]) -> pd.DataFrame:
    """A sweep of whose ranks all train on the same batches, where there are several."""
    rows = sweep(sizes)
    several = rows["world_size"] > 1
    return rows.assign(ranks_witness=several.map({True: "same_data", False: "store"}))


JOB = Job(samples=10_000_000)


def test_ranks_that_train_on_the_same_batches_are_not_chosen() -> None:
    answer = recommend(alike((1, 2, 4)), JOB)
    assert answer.meets_constraints
    assert answer.chosen.world_size == 1
    others = [row for row in answer.rows if row.world_size > 1]
    assert {row.barred_by for row in others} == {"contradicted"}
    assert {8, 16} <= {row.world_size for row in others}  # which nobody measured
    (fact,) = (f for f in answer.facts if f.kind == "contradicted_not_chosen")
    assert fact.values["world_sizes"][:2] == [2, 4]


def test_they_are_chosen_where_that_is_accepted() -> None:
    answer = recommend(alike((1, 2, 4)), JOB, accept_unmeasured=True)
    assert answer.chosen.world_size > 1
    assert answer.chosen.barred_by is None


def test_where_every_row_is_contradicted_nothing_is_chosen() -> None:
    answer = recommend(alike((2, 4)), JOB)
    assert answer.chooses_none
    assert not answer.meets_constraints
    assert {row.barred_by for row in answer.rows} == {"contradicted"}
    text = answer_text(answer)
    assert text.startswith("Nothing is chosen: ")
    assert ">" not in text.split("\n\n")[1]
    for word in ("Use ", "Closest"):
        assert word not in text


def test_of_batches_that_print_the_same_losses_the_smallest_may_be_chosen() -> None:
    rows = sweep((1, 2))
    rows = rows.assign(first_losses="2.3 2.2 2.1 2.0")
    answer = recommend(rows, JOB)
    least = rows["global_batch_size"].min()
    assert answer.chosen.batch.global_batch_size == least
    assert answer.chosen.barred_by is None
