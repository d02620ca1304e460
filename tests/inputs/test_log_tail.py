from pathlib import Path

from scalelab.inputs.plain_files import TAIL_BYTES, last_log_lines, log_tail


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert log_tail(tmp_path / "absent") == ""
    assert last_log_lines(tmp_path / "absent") == ""
    assert log_tail(tmp_path) == ""


def test_the_end_of_a_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"{number}\n" for number in range(20)) + "\n")
    assert last_log_lines(log, 2) == "18\n19"
    assert len(last_log_lines(log).splitlines()) == 8
    assert log_tail(log, num_bytes=4) == "19\n\n"


def test_what_a_log_held_before_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("earlier\n")
    since = log.stat().st_size
    assert last_log_lines(log, since=since) == ""
    with log.open("a") as file:
        file.write("now\n")
    assert last_log_lines(log, since=since) == "now"
    assert log_tail(log, num_bytes=3, since=since) == "ow\n"


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space, and would fill the memory
        file.seek(0, 2)
        file.write(b"\n\xffend\n")
    assert len(log_tail(log)) <= TAIL_BYTES
    assert last_log_lines(log, 1) == "\ufffdend"
