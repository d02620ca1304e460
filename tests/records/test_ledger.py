import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalelab.errors import SchemaError
from scalelab.records.attempt import AttemptResult
from scalelab.records.ledger import Ledger
from scalelab.records.observations import row


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl")


def test_what_is_appended_is_read(
    ledger: Ledger, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    observation = row(make_spec(), measured)
    key = (observation["trial_id"], 1)
    ledger.append_begin(key)
    ledger.append_end(observation)
    content = ledger.read()
    assert list(content.begun) == [key]
    assert content.ended == {key: observation}
    assert (content.is_whole, content.is_torn) == (True, False)


def test_a_missing_ledger_is_not_whole(ledger: Ledger) -> None:
    assert not ledger.read().is_whole


def test_the_last_end_of_an_attempt_counts(
    ledger: Ledger,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    lost: AttemptResult,
) -> None:
    spec = make_spec()
    ledger.append_end(row(spec, lost))
    ledger.append_end(row(spec, measured))
    (observation,) = ledger.read().ended.values()
    assert observation["outcome"] == "completed"


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_half_a_last_line_is_left_out(
    ledger: Ledger, make_spec: Callable[..., Any], measured: AttemptResult, cut: int
) -> None:
    for seed in range(3):
        ledger.append_end(row(make_spec(seed), measured))
    content = ledger.path.read_bytes()
    ledger.path.write_bytes(content[:-cut])
    read = ledger.read()
    assert (len(read.ended), read.is_whole, read.is_torn) == (2, True, True)


@pytest.mark.parametrize(
    "line", [b"\0\0\0", b"{", b"[]", b"3", b'{"event":"end","row":{}}', b"{}"]
)
def test_a_damaged_line_is_noticed(
    ledger: Ledger, make_spec: Callable[..., Any], measured: AttemptResult, line: bytes
) -> None:
    ledger.append_end(row(make_spec(0), measured))
    ledger.close()
    ledger.path.write_bytes(line + b"\n" + ledger.path.read_bytes())
    read = ledger.read()
    assert (len(read.ended), read.is_whole) == (1, False)


def test_a_newer_row_is_refused(
    ledger: Ledger, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    newer = {**row(make_spec(), measured), "schema_version": 5}
    ledger.path.write_text(json.dumps({"event": "end", "row": newer}) + "\n")
    with pytest.raises(
        SchemaError, match=r"schema_version=5; this ScaleLab reads up to 4\. Install"
    ):
        ledger.read()


def test_replacing_and_appending_go_together(
    ledger: Ledger, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    first, second = (row(make_spec(seed), measured) for seed in range(2))
    key = (first["trial_id"], 1)
    ledger.append_begin(key)
    ledger.replace({key: "2026-11-20T10:00:00+00:00"}, {key: first})
    ledger.append_end(second)
    content = ledger.read()
    assert list(content.ended.values()) == [first, second]
    assert content.begun == {key: "2026-11-20T10:00:00+00:00"}
