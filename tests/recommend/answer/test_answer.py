import dataclasses
import re

import pandas as pd
import pytest
from made_up_sweeps import convergence, sweep

from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.money.prices import Price
from scalelab.recommend.question.objective import Constraints

JOB = Job(epochs=10, samples_per_epoch=1_000_000)


@pytest.fixture(scope="module")
def measured() -> Recommendation:
    frame = sweep(lr_rule="sqrt", learning_rate=0.2, precision="bf16")
    frame["validity"] = [["shared_node"]] * 2 + [[]] * (len(frame) - 2)
    limits = Constraints(
        limits={"time": 20 * 3600, "money": 900}, price=Price(amount=2.0)
    )
    return recommend(frame, JOB, constraints=limits)


def test_the_answer_reads_as_a_user_expects(measured: Recommendation) -> None:
    text = answer_text(measured, explain=True)
    lines = text.splitlines()
    chosen = measured.chosen
    assert lines[0].startswith(f"Use {chosen.world_size} A100 ({chosen.num_nodes} node")
    assert "global batch 256 = " in lines[0]
    assert "learning rate 0.2 (rule: sqrt)" in text
    assert "GPU-h, " in text
    assert (
        "Chance of meeting < 20 h and < 900 usd: > 99% if 10 epochs suffice at batch "
        "256." in " ".join(text.split())
    )
    assert "Rule: of the allocations that meet the limits" in text
    compared = "samples/s per GPU against 1 GPU at the same global batch."
    assert f"Strong efficiency: {compared}" in answer_text(measured, 120, explain=True)
    assert "Doubling stops paying " in text
    assert "inter-node all-reduce." in text
    assert "Price: 2 usd per GPU-h, as given." in text
    assert "Not measured: accuracy at batch 256; assumes 10 epochs suffice." in text
    assert "2 of 27 trials ignored: other jobs ran on the node." in text


def test_the_table_has_a_row_per_size_and_marks_the_chosen(
    measured: Recommendation,
) -> None:
    lines = answer_text(measured, 140).splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("GPUs"))
    table = lines[header + 1 : header + 1 + len(measured.rows)]
    marked = [line for line in table if line.startswith(">") or " >" in line[:5]]
    assert len(marked) == 1
    assert f">{measured.chosen.world_size} " in marked[0]
    assert sum("measured" in line for line in table) == 5
    titles = ["basis", "fitted", "samples/s", "nodes", "batch"]
    assert lines[header].split()[-5:] == titles
    assert "256=32x4x2" in next(line for line in table if " 1x4 " in line)


@pytest.mark.parametrize(
    ("width", "first", "last"),
    [
        (110, ["efficiency", "next", "doubling", "chance"], ["basis", "batch"]),
        (90, ["usd", "efficiency", "chance"], ["basis", "batch"]),
        (60, ["usd", "chance"], ["basis"]),
    ],
)
def test_a_narrow_table_keeps_its_intervals_and_what_they_rest_on(
    measured: Recommendation, width: int, first: list[str], last: list[str]
) -> None:
    lines = answer_text(measured, width).splitlines()
    header = next(line for line in lines if line.startswith("GPUs"))
    assert "80%" in header.split()
    assert header.split()[-len(first + last) :] == first + last


def test_the_table_prices_each_size_where_there_is_a_price(
    measured: Recommendation,
) -> None:
    header = next(
        line
        for line in answer_text(measured, 120, explain=True).splitlines()
        if line[:4] == "GPUs"
    )
    assert "usd" in header.split()
    unpriced = answer_text(recommend(sweep((2, 4)), JOB), 120)
    assert "usd" not in unpriced


def test_a_job_of_seconds_is_not_told_in_hours() -> None:
    short = Job(epochs=1, samples_per_epoch=2000)
    text = answer_text(recommend(sweep((2, 4)), short), 120)
    assert "GPU-s" in text
    assert "GPU-h" not in text.split("The trial that would change")[0]


@pytest.mark.slow
def test_a_step_up_that_is_no_doubling_says_where_it_leads() -> None:
    text = answer_text(recommend(sweep((2, 3, 4), global_batch=None), JOB), 120)
    rows = {line.split()[0].lstrip(">"): line for line in text.splitlines() if line}
    assert "  -50% time" in rows["2"]
    assert "  at 4: -" in rows["3"]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_the_text_is_ascii_and_fits_the_width(
    measured: Recommendation, width: int
) -> None:
    text = answer_text(measured, width)
    assert text.isascii()
    # intervals and what they rest on stay, however narrow the terminal
    fits_all = max(width, 52)
    assert max(map(len, text.splitlines())) <= fits_all
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= max(width, 32)
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_narrow_terminals_lose_columns_in_order_and_say_so(
    measured: Recommendation,
) -> None:
    lost = ["fitted samples/s", "nodes", "next doubling", "efficiency", "batch"]
    for width in (140, 120, 100, 80, 60, 40):
        table, _, missing = answer_text(measured, width).partition("Not shown at ")
        header = table[table.rindex("\nGPUs ") + 1 :].splitlines()[0]
        missing = " ".join(missing.split())
        assert "80%" in header
        assert "basis" in header
        gone = [title not in header for title in lost]
        assert gone == sorted(gone, reverse=True)
        assert [title in missing for title in lost] == gone


def test_nothing_meets_shows_the_closest_and_what_can_be_met() -> None:
    limits = Constraints(limits={"time": 60.0})
    text = answer_text(recommend(sweep(noise=0.001), JOB, constraints=limits))
    said = r"Nothing meets < 60 s\. Shortest deadline at 90%: \S+ min, on 16 GPUs"
    assert re.match(said, text)
    assert "\nClosest: " in text


def test_emulated_answers_say_so() -> None:
    text = answer_text(recommend(sweep(emulated=True), JOB), explain=True)
    assert "emulated GPUs (" in text.splitlines()[0]
    assert "Emulated: times are declared, nothing here was measured." in text


@pytest.mark.slow
def test_cores_are_called_slots() -> None:
    frame = sweep((1, 2), device_type="cpu", device_name="EPYC")
    text = answer_text(recommend(frame, JOB), explain=True)
    assert "CPU slots (1 node x 2)" in text or "1 CPU slot (1 node x 1)" in text
    assert "core-h" in text
    assert "GPU" not in text
    assert "To measure first: " in text


def test_an_end_of_scaling_out_of_range_is_said(measured: Recommendation) -> None:
    none = dataclasses.replace(measured.knee, lo=None, hi=None)
    text = answer_text(dataclasses.replace(measured, knee=none), explain=True)
    assert "Nothing measured, up to 16 GPUs, shows diminishing returns; 64 are" in text
    later = dataclasses.replace(measured.knee, lo=16, hi=None)
    text = answer_text(dataclasses.replace(measured, knee=later), explain=True)
    assert "Doubling stops paying somewhere above 16 GPUs: inter-node" in text


@pytest.mark.slow
def test_the_explanation_lists_parameters_and_formulas() -> None:
    frame = pd.concat(
        [sweep((1, 2, 4), global_batch=None), convergence()], ignore_index=True
    )
    found = recommend(frame, Job(target="val_acc >= 0.9"))
    text = answer_text(found, 200, explain=True)
    assert "Qiao et al. 2021" in text
    assert "McCandlish et al. 2018" in text
    assert "compute_per_sample" in text
    assert "critical_batch_size" in text
    assert "Not identifiable: inter_node_latency and inter_node_transfer" in text
    assert text.isascii()


def test_rivals_without_intervals_are_explained_too() -> None:
    text = answer_text(recommend(sweep(), JOB, law="amdahl"), explain=True)
    assert "serial_fraction" in text
    assert "nan" not in text


def test_a_single_size_is_explained() -> None:
    found = recommend(sweep((1,)), JOB)
    assert "compute_per_sample" in answer_text(found, explain=True)
    assert answer_text(found).startswith("Use 1 A100 (1 node x 1)")
