from dataclasses import replace
from typing import Any

import pytest
from made_up_runs import planned, recommendation, trial_row

from scalelab.laws.rows import step_time_rows
from scalelab.recommend.answer.failures import failures, limits_of_memory, why_no_answer
from scalelab.recommend.answer.note_words import in_words
from scalelab.recommend.answer.text import answer_text
from scalelab.records.observations import frame

Row = dict[str, Any]


def failed(number: int, reason: str | None = "rank 0 died.", **values: Any) -> Row:
    ended = {"outcome": "failed", "step_time_s": None} | values
    return trial_row(8, 64, trial_id=f"bad{number}", reason=reason, **ended)


def said_of(rows: list[Row]) -> str:
    return " ".join(in_words(fact, "GPU") for fact in failures(frame(rows)))


def good(number: int) -> Row:
    return trial_row(1, 64, trial_id=f"good{number}")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([good(0), good(1)], ""),
        (
            [good(0), good(1), *(failed(n) for n in range(10))],
            "From 2 of 12 trials; 10 failed: rank 0 died.",
        ),
        (
            [good(0), failed(0, "a\nb"), failed(1, "a\nb"), failed(2, "c")],
            "From 1 of 4 trials; 3 failed, 2 of them: a b.",
        ),
        (
            [good(0), *(failed(n, f"rank {n % 2} raised E: no.") for n in range(6))],
            "From 1 of 7 trials; 6 failed: a rank raised E: no.",
        ),
        ([good(0), failed(0, None)], "From 1 of 2 trials; 1 failed: failed."),
        ([good(0), failed(0) | {"trial_id": "good0", "attempt": 2}], ""),
        ([good(0), failed(0, outcome="preempted")], ""),
        (
            [
                good(0),
                failed(0, None, outcome="timed_out"),
                failed(1, outcome="out_of_memory"),
            ],
            "From 1 of 3 trials; 1 did not fit into memory; 1 failed: timed out.",
        ),
        ([good(0), failed(0, outcome="out_of_memory")], ""),
    ],
)
def test_failures_are_counted_by_trial_and_explained(
    rows: list[Row], said: str
) -> None:
    assert said_of(rows) == said


def test_a_long_reason_is_cut() -> None:
    said = said_of([good(0), failed(0, "x" * 500)])
    assert said.endswith("x ....")
    assert len(said) < 170


def test_failures_reach_the_headline() -> None:
    answer = recommendation(planned((1, 2), chosen=2, measured_up_to=2))
    found = replace(answer, facts=(*failures(frame([good(0), failed(0, "no")])),))
    headline = answer_text(found).split("\n\n")[0]
    assert "Open: 1 of 2 trials failed; " in headline
    assert "\nFrom 1 of 2 trials; 1 failed: no." in answer_text(found, explain=True)
    assert "failed" not in answer_text(answer, explain=True)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [failed(n, outcome="out_of_memory") for n in range(18)],
            "Nothing fitted into memory: each of 18 trials ran out of it, local batch "
            "64 too. Try a smaller local_batch_size, such as 32, a precision of fewer "
            "bits, or parallelism: fsdp on more devices.",
        ),
        (
            [
                good(n) | {"validity": marks, "device_type": "cpu", "device_ids": ids}
                for n, (marks, ids) in enumerate(
                    [(["oversubscribed_cores"], ["0", "1", "0", "1"])] * 3
                )
            ],
            "None of the 3 rows has a usable step time: there were more ranks than "
            "cores. Declare no more slots than cores: gpus_per_node: 2.",
        ),
        (
            [
                failed(0, outcome="out_of_memory"),
                failed(1),
                good(2) | {"validity": ["rate_disagrees", "superseded_engine"]},
            ],
            "None of the 3 rows has a usable step time: the device's memory was too "
            "small (1), the trial failed (1), the program's own rate differs, measured "
            "by an engine since found wrong (1). Try smaller local batches. `scalelab "
            "status` names what failed; mend it, then sweep --retry-failed.",
        ),
        (
            [],
            "None of the 0 rows has a usable step time. Run at least one throughput "
            "trial.",
        ),
    ],
)
def test_where_there_is_no_answer_the_remedy_fits_the_reason(
    rows: list[Row], said: str
) -> None:
    assert why_no_answer(step_time_rows(frame(rows))) == said


def test_what_did_not_fit_reaches_the_explanation_and_json() -> None:
    answer = recommendation(planned((1, 2), chosen=2, measured_up_to=2))
    assert "memory_limits" not in answer.to_json()
    rows = [good(0), failed(0, outcome="out_of_memory") | {"local_batch_size": 128}]
    found = replace(answer, memory_limits=limits_of_memory(frame(rows)))
    said = "\nLocal batch 128 did not fit into memory; 64 did.\n"
    assert said in answer_text(found, explain=True)
    assert found.to_json()["memory_limits"] == [
        {
            "settings": {},
            "local_batch_size": 128,
            "largest_fitting": 64,
            "num_trials": 1,
        }
    ]


def test_an_imported_table_has_no_failures() -> None:
    assert said_of([good(0) | {"trial_id": None}]) == ""
