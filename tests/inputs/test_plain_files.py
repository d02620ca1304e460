"""Records of somebody else, who may mean harm."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.inputs.plain_files import harmless_text, last_log_lines, parse_json
from scalelab.records.cache import own_file, write_cache
from scalelab.records.ledger import discard_halves
from scalelab.records.store import RunStore

HALF = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\tü 漢\n", "plain\tü 漢\n"),
        ("\x1b[1;31mred\x1b[m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("10%\r20%\r\nend", "10%\n20%\nend"),
        ("\x1bc\x9b31m\x00\x7f\ud800", "\ufffdc\ufffd31m\ufffd\ufffd\ufffd"),
    ],
)
def test_a_terminal_obeys_nothing(text: str, shown: str) -> None:
    assert harmless_text(text) == shown
    content = json.dumps({text: [text, 1, None]}).encode()
    assert parse_json(content) == {shown: [shown, 1, None]}


def test_what_is_compared_stays_as_it_is() -> None:
    content = json.dumps(["\r?step \x1b"]).encode()
    assert parse_json(content, is_compared=True) == ["\r?step \x1b"]


def test_what_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 100_000 + b"]" * 100_000)


def test_logs_are_shown_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"one\r\x1b[31mtwo\x1b[0m\n")
    assert last_log_lines(log) == "one\ntwo"


def test_a_cache_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "cache").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="cannot be written: cache is a link"):
        write_cache(tmp_path / "cache" / "answers.json", b"{}")
    assert os.listdir(elsewhere) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_cache_of_somebody_else_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(b"{}")
    own_file(path).close()
    os.chown(path, 4242, -1)
    with pytest.raises(PermissionError, match="it is somebody else's"):
        own_file(path)


def test_halves_are_deleted_where_they_are_and_not_behind_a_link(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f".a.{HALF}").touch()
    (tmp_path / "cache").symlink_to(elsewhere)
    discard_halves(tmp_path / "cache", tmp_path)
    assert os.listdir(elsewhere) == [f".a.{HALF}"]
    discard_halves(elsewhere, elsewhere)
    assert os.listdir(elsewhere) == []


def test_a_run_that_was_not_made_whole_is_deleted_when_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, other = tmp_path / f".a.{HALF}", tmp_path / f".b.{HALF}"
    for each in (making, other):
        (each / "experiments").mkdir(parents=True)
    RunStore.create(tmp_path / "a", experiment_text="x", fingerprint={})
    assert making.exists()
    shutil.rmtree(tmp_path / "a")
    in_a_while = time.time() + 90
    monkeypatch.setattr(time, "time", lambda: in_a_while)
    RunStore.create(tmp_path / "a", experiment_text="x", fingerprint={})
    assert not making.exists()
    assert other.exists()
