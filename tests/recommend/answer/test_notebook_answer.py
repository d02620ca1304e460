from dataclasses import replace

import pytest
from made_up_runs import planned, recommendation
from sentences import Golden

from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.text import answer_text
from scalelab.session.answer import Answer

HOSTILE = Fact("import_doubted", {"doubt": "<script>alert(1)</script>"})


@pytest.fixture
def answer() -> Answer:
    """16 of up to 32 GPUs, 32 extrapolated."""
    return Answer.of(
        recommendation(planned((1, 2, 4, 8, 16, 32), chosen=16, measured_up_to=16))
    )


def test_a_console_shows_what_the_command_prints(
    answer: Answer, golden: Golden
) -> None:
    assert repr(answer) == answer_text(answer)
    golden(repr(answer))


def test_a_notebook_shows_the_answer_its_table_and_its_remarks(answer: Answer) -> None:
    hostile = replace(answer, facts=(HOSTILE,))
    page = hostile._repr_html_()
    assert page.startswith("<p><strong>Use 16 A100 (4 nodes x 4)")
    assert page.count("<tr") == 1 + len(answer.rows)
    assert page.count("font-weight") == 1
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    sizes = [f"<td>{row.world_size}</td>" for row in answer.rows]
    places = [page.index(size) for size in sizes]
    assert places == sorted(places)


def test_a_frame_has_a_row_per_allocation_and_units_in_its_names(
    answer: Answer,
) -> None:
    frame = answer.to_frame()
    assert frame["world_size"].tolist() == [1, 2, 4, 8, 16, 32]
    (chosen,) = frame[frame["is_chosen"]].to_dict("records")
    time = answer.chosen.time_s
    assert (chosen["time_s"], chosen["time_s_lo"]) == (time.value, time.lo)
    assert chosen["gpu_hours_hi"] == answer.chosen.gpu_hours.hi
    assert chosen["global_batch_size"] == 512
    assert not frame.map(lambda value: isinstance(value, dict)).to_numpy().any()


def test_it_is_the_same_answer(answer: Answer) -> None:
    assert Answer.of(answer) == answer
    assert replace(answer, facts=(HOSTILE,)) != answer
