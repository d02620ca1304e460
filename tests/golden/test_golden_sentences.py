"""Golden files are of tests that there are, and other tests assert few sentences."""

import re
from pathlib import Path

import pytest
from literal_sentences import TESTS, counts

GOLDEN = sorted((Path(__file__).parent / "sentences").glob("*.txt"))

# They fall: a sentence belongs into the golden file of its room.
MOST = {"recommend": 75, "cli": 97, "report": 26, "session": 14, "experiment": 3}
MOST_IN_ALL = 715


def test_tests_assert_few_sentences() -> None:
    by_room = counts()
    assert {room: by_room[room] for room in MOST if by_room[room] > MOST[room]} == {}
    assert by_room.total() <= MOST_IN_ALL


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_each_section_is_of_a_test_of_its_room(path: Path) -> None:
    of_session = path.stem == "session"
    files = TESTS.glob("*.py") if of_session else (TESTS / path.stem).rglob("*.py")
    text = "\n".join(file.read_text() for file in files)
    defined = {*re.findall(r"def (test_\w+)", text)}
    sections = {*re.findall(r"^== (test_\w+)", path.read_text(), re.MULTILINE)}
    assert sections - defined == set()
