import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalelab.errors import StoreError
from scalelab.records import streams
from scalelab.records.attempt import AttemptFiles
from scalelab.records.store import RunStore
from scalelab.records.streams import read_lines


def step(number: int, **extra: object) -> dict[str, object]:
    return {"event": "step", "step": number, "samples": 64 * number, **extra}


def report(files: AttemptFiles, *rows: object, end: str = "\n") -> None:
    files.directory.mkdir(parents=True, exist_ok=True)
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    with files.stream.open("a") as stream:
        stream.write(text + end)


@pytest.fixture
def attempt(store: RunStore) -> Callable[..., Any]:
    """Return the files of an attempt of trial ``t<index>``."""
    return lambda index=0, number=1: AttemptFiles(
        store.attempt_directory(f"t{index}", number)
    )


def one(store: RunStore, trial_id: str = "t0", number: int = 1) -> pd.DataFrame:
    """Return the stream of one attempt."""
    found = store.streams()
    own = found[found["trial_id"].eq(trial_id) & found["attempt"].eq(number)]
    own = own.drop(columns=["trial_id", "attempt"]).dropna(axis=1, how="all")
    return own.reset_index(drop=True)


def test_a_stream_is_a_frame(store: RunStore, attempt: Callable[..., Any]) -> None:
    report(
        attempt(),
        step(1, loss=2, step_time_s=0.01),
        step(2, loss=float("nan"), step_time_s=0.02),
        {"event": "evaluation", "step": 2, "samples": 128, "val_acc": 0.5, "top": None},
    )
    expected = pd.DataFrame(
        {
            "event": ["step", "step", "evaluation"],
            "step": [1, 2, 2],
            "samples": [64, 128, 128],
            "loss": [2.0, None, None],
            "step_time_s": [0.01, 0.02, None],
            "val_acc": [None, None, 0.5],
        }
    )
    pd.testing.assert_frame_equal(one(store), expected)


def test_no_stream_is_an_empty_frame(store: RunStore) -> None:
    assert one(store).empty
    assert store.streams().empty
    store.compact()
    assert store.streams().empty


@pytest.mark.parametrize("torn", ['{"step":3,"lo', '{"step":3}', "\0\0\0", "{"])
def test_half_a_last_line_is_dropped(
    store: RunStore, attempt: Callable[..., Any], torn: str
) -> None:
    report(attempt(), step(1), step(2), torn, end="")
    for _ in range(2):
        assert one(store)["step"].tolist() == [1, 2]
        store.compact()


@pytest.mark.parametrize("torn", ['{"step":3,"lo', "", "7", "[]", '{"a":1},{"b":2}'])
def test_a_torn_line_in_the_middle_is_named(
    store: RunStore, attempt: Callable[..., Any], torn: str
) -> None:
    report(attempt(), step(1), torn, step(4))
    report(attempt(1), step(1))
    message = r"t0/001/stream\.jsonl, line 2 is no JSON object: b'.*Remove the line"
    with pytest.raises(StoreError, match=message):
        store.streams()
    assert store.streams(skips_unreadable=True)["trial_id"].tolist() == ["t1"]
    # The others are gathered, and it as soon as it can be read.
    (said,) = store.compact()
    assert re.search(message, said)
    attempt().stream.write_text(json.dumps(step(1)) + "\n")
    assert store.compact() == []
    assert set(store.streams()["trial_id"]) == {"t0", "t1"}


def test_two_half_lines_do_not_pass_for_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    path.write_text('{"a":1\n"b":2}\n')
    with pytest.raises(StoreError, match="line 1 is no JSON object"):
        read_lines(path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (step(2, loss="high"), r"line 2: loss='high' does not fit with the rest"),
        (step(2) | {"step": 2.5}, r"line 2: step=2\.5 does not fit"),
        (step(2) | {"samples": 2**70}, r"line 2: samples=1180591620717411303424"),
    ],
)
def test_a_value_of_another_type_is_named(
    store: RunStore, attempt: Callable[..., Any], second: dict[str, Any], message: str
) -> None:
    report(attempt(), step(1, loss=2.5), second)
    with pytest.raises(StoreError, match=message):
        one(store)


def test_an_unreadable_stream_is_said(
    store: RunStore, attempt: Callable[..., Any]
) -> None:
    attempt().stream.mkdir(parents=True)
    with pytest.raises(
        StoreError, match=r"stream\.jsonl cannot be read: it is a directory"
    ):
        one(store)


def test_compacting_changes_nothing_that_is_read(
    store: RunStore, attempt: Callable[..., Any]
) -> None:
    for index in range(3):
        report(attempt(index), *(step(n, loss=1 / n) for n in range(1, 5 + index)))
    report(attempt(1, 2), step(1, only_here="text"), step(2, flag=True))
    keys = [("t0", 1), ("t1", 1), ("t1", 2), ("t2", 1)]
    lines = [one(store, *key) for key in keys]
    gathered = store.streams()
    store.compact()
    for key, expected in zip(keys, lines, strict=True):
        pd.testing.assert_frame_equal(one(store, *key), expected)
    pd.testing.assert_frame_equal(store.streams(), gathered)
    assert gathered.groupby(
        ["trial_id", "attempt"], observed=True
    ).size().to_dict() == {
        ("t0", 1): 4,
        ("t1", 1): 5,
        ("t1", 2): 2,
        ("t2", 1): 6,
    }


def test_the_compacted_copy_follows_the_streams(
    store: RunStore, attempt: Callable[..., Any]
) -> None:
    copy = store.directory / "cache" / "streams.parquet"
    report(attempt(0), step(1))
    store.compact()
    report(attempt(0), step(2))
    report(attempt(1), step(1))
    assert one(store)["step"].tolist() == [1, 2]
    assert store.streams()["step"].tolist() == [1, 2, 1]
    store.compact()
    written = copy.stat().st_mtime_ns
    store.compact()
    assert copy.stat().st_mtime_ns == written
    report(attempt(2), step(7))
    attempt(0).stream.rename(attempt(0).directory / "away")
    store.compact()
    assert store.streams()["step"].tolist() == [1, 7]
    copy.write_bytes(b"PAR1")
    assert store.streams()["step"].tolist() == [1, 7]


def test_what_stands_is_not_read_again(
    store: RunStore, attempt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report(attempt(0), step(1))
    store.compact()
    report(attempt(1), step(2))
    read: list[Path] = []
    read_lines = streams.read_lines
    monkeypatch.setattr(
        streams,
        "read_lines",
        lambda path, **kw: (read.append(path), read_lines(path, **kw))[1],
    )
    store.compact()
    assert read == [attempt(1).stream]
    assert store.streams()["step"].tolist() == [1, 2]
