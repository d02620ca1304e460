"""Every kind of note has a sentence that says its values."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from sample_notes import ASK, CONTAINED, NOTES
from sentences import Golden

import scalelab
from scalelab.inputs.problems import for_the_command_line
from scalelab.recommend.answer.facts import Contents, Fact
from scalelab.recommend.answer.note_words import SENTENCES, in_words, judged_times
from scalelab.recommend.prediction.consistency import NOTED


@pytest.mark.parametrize("contents", get_args(Contents))
def test_times_say_what_they_contain(contents: Contents, golden: Golden) -> None:
    values = {"contents": contents, "beside_s": {}, "not_in": ["start-up"]}
    said = in_words(Fact("times_contain", values), "GPU")
    assert said.startswith("Times are of ")
    golden(said)
    assert judged_times(values) == " (of training steps)"


def test_limits_are_judged_by_the_times_that_were_measured(golden: Golden) -> None:
    golden(judged_times(CONTAINED))
    assert judged_times(CONTAINED | {"not_in": []}) == ""


def test_every_kind_has_a_sentence() -> None:
    assert {kind for kind, _ in NOTES} == SENTENCES.keys()


def test_every_kind_that_is_noted_has_a_sentence() -> None:
    room = Path(scalelab.__file__).parent
    text = "".join(path.read_text() for path in room.rglob("*.py"))
    noted = {*re.findall(r"\bFact(?:\.of)?\(\s*\"(\w+)\"", text)}
    named = {*re.findall(r"yield \"(\w+)\", ", text)}  # rows beside the chosen one
    named |= {kind for kind, *_ in NOTED}
    assert noted | named == SENTENCES.keys()


@pytest.mark.parametrize(
    ("kind", "values", "option"),
    [
        (
            "batch_too_large",
            {"world_size": 16, "largest": 256, "why": "measured", "may_ask": True},
            "; --max-batch allows more.",
        ),
        (
            "unmeasured_not_chosen",
            {"world_sizes": [16], "is_proposed": False},
            "; --accept-unmeasured ",
        ),
        (
            "next_step",
            {"step": "ask_what_can_be_met", "command": ASK},
            "Next: scalelab recommend runs/vit --max-time 2h (asks for what can be "
            "met).",
        ),
        (
            "not_identifiable",
            {"parameters": ["a"], "why": "b", "remedy": "C.", "may_learn": True},
            "--learn-from RUN.",
        ),
    ],
)
def test_the_command_line_reads_options(
    kind: str, values: dict[str, Any], option: str
) -> None:
    with for_the_command_line():
        assert option in in_words(Fact(kind, values), "GPU")
