"""Attempts that ran before the code, command or measurement changed."""

import json
from pathlib import Path

from measured_runs import EMULATED, completed, end_trial, measured_run
from planned_trials import planned_trials

from scalelab.experiment.spec import Experiment
from scalelab.records.store import RunStore

CHANGED = EMULATED.replace("2.0e-3", "3.0e-3")


def superseded_run(folder: Path) -> tuple[RunStore, Experiment]:
    store = measured_run(folder / "run")
    asked = Experiment.from_text(CHANGED)
    store.extend(CHANGED, asked.fingerprint(device_type="cpu"), supersedes=True)
    return store, asked


def test_rows_until_then_are_marked_and_later_ones_are_not(tmp_path: Path) -> None:
    store, asked = superseded_run(tmp_path)
    first = planned_trials(asked)[0]
    end_trial(store, asked, first, completed(first, validity=["shared_node"]))
    again = RunStore.open(store.directory)
    marks = [row["validity"] for row in again.rows()]
    assert marks == [["code_changed"]] * 8 + [["shared_node"]]
    assert again.observations()["validity"].tolist() == marks


def test_only_attempts_of_the_present_meaning_count(tmp_path: Path) -> None:
    store, asked = superseded_run(tmp_path)
    assert store.finished(store.rows()) == []
    first = planned_trials(asked)[0]
    end_trial(store, asked, first, completed(first))
    (row,) = store.finished(store.rows())
    assert (row["trial_id"], row["attempt"]) == (first.trial_id, 2)
    with store.lease():
        (row,) = store.finished(store.recover())
        assert row["attempt"] == 2


def test_a_run_may_be_superseded_again(tmp_path: Path) -> None:
    store, asked = superseded_run(tmp_path)
    first = planned_trials(asked)[0]
    end_trial(store, asked, first, completed(first))
    store.extend(EMULATED, {"workload": "other"}, supersedes=True)
    assert {tuple(row["validity"]) for row in store.rows()} == {("code_changed",)}
    header = json.loads((store.directory / "run.json").read_text())
    assert [len(version["superseded"]) for version in header["versions"]] == [0, 8, 9]


def test_an_extension_supersedes_nothing(tmp_path: Path) -> None:
    store = measured_run(tmp_path / "run")
    store.extend(EMULATED.replace("[4, 8]", "[4, 8, 16]"), store.fingerprint)
    assert len(store.finished(store.rows())) == 8
    assert all(row["validity"] == [] for row in store.rows())


def test_a_header_without_the_mark_is_read(tmp_path: Path) -> None:
    store = measured_run(tmp_path / "run")
    path = store.directory / "run.json"
    header = json.loads(path.read_text())
    del header["versions"][0]["superseded"]
    path.write_text(json.dumps(header))
    assert len(RunStore.open(store.directory).finished(store.rows())) == 8
