"""Answers kept on disk come back whole, and only for the question and the state."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up_sweeps import sweep

from scalelab.errors import StoreError
from scalelab.experiment.job import Job
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer import kept as kept_answers
from scalelab.recommend.answer.kept import KeptAnswers
from scalelab.recommend.answer.recommendation import Recommendation

STATE = {"ledger.jsonl": [1, 2]}


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    frame = sweep((1, 2, 4), global_batch=None, precision="bf16")
    # a rival's parameters have no intervals: NaN must survive too
    return recommend(frame, Job(samples=1_000_000), law="amdahl")


def test_a_kept_answer_comes_back_whole(tmp_path: Path, answer: Recommendation) -> None:
    path = tmp_path / "cache" / "answers.json"
    KeptAnswers(path, STATE).keep("how many?", answer)
    assert repr(KeptAnswers(path, STATE).find("how many?")) == repr(answer)
    assert KeptAnswers(path, STATE).find("how few?") is None


def test_another_state_or_other_code_has_no_answer(
    tmp_path: Path, answer: Recommendation, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.json"
    KeptAnswers(path, STATE).keep("q", answer)
    assert KeptAnswers(path, {"ledger.jsonl": [1, 3]}).find("q") is None
    monkeypatch.setattr(kept_answers, "_CODE", ("laws",))
    assert KeptAnswers(path, STATE).find("q") is None


def test_the_latest_twenty_are_kept(tmp_path: Path, answer: Recommendation) -> None:
    kept = KeptAnswers(tmp_path / "answers.json", STATE)
    for number in range(22):
        kept.keep(str(number), answer)
    found = [kept.find(str(number)) is not None for number in range(22)]
    assert found == [False] * 2 + [True] * 20


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kept: "",
        lambda kept: "[]",
        lambda kept: json.dumps({"source": kept["source"]}),
        lambda kept: json.dumps({**kept, "answers": {k: 3 for k in kept["answers"]}}),
        lambda kept: json.dumps({**kept, "answers": {k: {} for k in kept["answers"]}}),
    ],
)
def test_a_spoilt_file_is_no_answer_and_is_replaced(
    tmp_path: Path, answer: Recommendation, spoil: Callable[..., Any]
) -> None:
    path = tmp_path / "answers.json"
    kept = KeptAnswers(path, STATE)
    kept.keep("q", answer)
    path.write_text(spoil(json.loads(path.read_text())))
    assert kept.find("q") is None
    kept.keep("q", answer)
    assert repr(kept.find("q")) == repr(answer)


def test_a_disk_that_refuses_is_named(tmp_path: Path, answer: Recommendation) -> None:
    (tmp_path / "cache").write_text("no directory")
    kept = KeptAnswers(tmp_path / "cache" / "answers.json", STATE)
    assert kept.find("q") is None
    with pytest.raises(StoreError, match=r"answers\.json"):
        kept.keep("q", answer)
