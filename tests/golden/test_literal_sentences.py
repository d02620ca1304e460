"""How often tests assert sentences, instead of kinds, codes and values."""

from literal_sentences import counts

# They fall: a sentence belongs into the golden file of its room.
MOST = {"recommend": 75, "cli": 97, "report": 26, "session": 14, "experiment": 3}
MOST_IN_ALL = 715


def test_tests_assert_few_sentences() -> None:
    by_room = counts()
    assert {room: by_room[room] for room in MOST if by_room[room] > MOST[room]} == {}
    assert by_room.total() <= MOST_IN_ALL
