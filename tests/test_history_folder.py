"""Answers learn from the runs of the history, and name them by hash."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sentences import refused

from scalelab.records.control.lease import LEASE, Lease
from scalelab.records.store import HistoryFolder
from scalelab.session import Run, answer_text, import_table, load

ASKED: dict[str, Any] = {"job": {"samples": 1_000_000}, "gpus": [8]}
NODES = {1: 1, 2: 1, 4: 1, 8: 2, 16: 4}


def table(workload: str, most: int, device: str = "A100") -> str:
    rows = ["workload,device_name,gpus,nodes,local_batch_size,step_time_s"]
    for gpus, nodes in NODES.items():
        if gpus <= most:
            step_s = 0.05 + 0.004 * (nodes > 1) * nodes + 0.001 * len(workload)
            rows.append(f"{workload},{device},{gpus},{nodes},32,{step_s:.6f}")
    return "\n".join(rows)


def made(where: Path, *, of: str = "own", most: int = 4, device: str = "A100") -> Run:
    text = where.with_name(f"{where.name}.csv")
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(table(of, most, device))
    return import_table(text, where)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "config" / "scalelab" / "history"
    made(folder / "other", of="other", most=16)
    made(folder / "elsewhere", of="elsewhere", most=16, device="H100")
    return folder


def learned(run: Run, **asked: Any) -> list[str]:
    facts = load(run.directory).recommend(**ASKED, **asked).facts
    return [
        name for f in facts if f.kind == "learned_from" for name in f.values["runs"]
    ]


@pytest.mark.slow
def test_the_history_teaches_and_is_named_by_hash(
    history: Path, tmp_path: Path
) -> None:
    run = made(tmp_path / "own")
    before = {path: path.read_bytes() for path in history.rglob("*.json*")}
    (name,) = learned(run)
    assert name == load(history / "other").hashed_name
    assert len(name) == len("other (01234567)")
    assert learned(run, no_history=True) == []
    assert before == {path: path.read_bytes() for path in history.rglob("*.json*")}
    with refused("history_said_twice", "learn_from", "no_history=True"):
        run.recommend(**ASKED, no_history=True, learn_from=[history / "other"])


@pytest.mark.slow
def test_the_same_history_gives_the_same_figures(history: Path, tmp_path: Path) -> None:
    run = made(tmp_path / "own")
    first = run.recommend(**ASKED)
    assert load(run.directory).recommend(**ASKED) == first
    (history / "other").rename(history / "z")
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(run.directory / "cache")
    assert load(run.directory).recommend(**ASKED) == first
    shutil.rmtree(history / "z")
    assert learned(run) == []


@pytest.mark.slow
def test_a_run_is_not_taught_by_its_own_rows_nor_by_what_is_being_swept(
    history: Path, tmp_path: Path
) -> None:
    run = made(tmp_path / "own")
    made(history / "copy")
    known, unread = HistoryFolder(str(history)).runs(run._reader)
    assert unread == []
    assert [name.split()[0] for name in known] == ["other"]
    with Lease(history / "other" / LEASE):
        assert learned(run) == []
    assert len(learned(run)) == 1


@pytest.mark.slow
def test_a_run_of_the_history_that_cannot_be_read_is_left_out_and_named(
    history: Path, tmp_path: Path
) -> None:
    run = made(tmp_path / "own")
    made(history / "more", of="more", most=8)
    shutil.copytree(history / "other", history / "broken")
    (history / "broken" / "run.json").write_text("{")
    (history / "more" / "ledger.jsonl").mkdir()
    for _ in range(2):  # the index is made, and read
        shutil.rmtree(run.directory / "cache", ignore_errors=True)
        answer = load(run.directory).recommend(**ASKED)
        said = " ".join(answer_text(answer, 100, explain=True).split())
        for name in ("broken", "more"):
            assert f"Nothing was learned from {name} of the history" in said
        assert "learned from 1 curve of other (" in said


@pytest.mark.slow
def test_an_index_that_was_damaged_is_made_anew(history: Path, tmp_path: Path) -> None:
    run = made(tmp_path / "own")
    (name,) = learned(run)
    (index,) = (tmp_path / "cache").rglob("history-*.json")
    kept = json.loads(index.read_text())
    assert name.split("(")[1][:-1] in kept["runs"]
    for hours, damaged in enumerate(([], {**kept, "runs": 3}), start=3):
        index.write_text(json.dumps(damaged))
        assert learned(run, max_time=f"{hours}h") == [name]


def test_a_law_that_learns_from_nothing_else_ignores_the_history(
    history: Path, tmp_path: Path
) -> None:
    assert learned(made(tmp_path / "own"), law="amdahl") == []
