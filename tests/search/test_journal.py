"""The journal of a search: a cache of what the attempts have left."""

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from searched import RANGES, completed, reached, row, search, swept

from scalelab.errors import StoreError
from scalelab.plan.source import Observation
from scalelab.search.journal import JOURNAL, copied
from scalelab.search.tuned_trials import TunedTrials


def loaded(directory: Path) -> optuna.Study:
    """Return the study as Optuna itself reads a copy of the journal."""
    copy = directory / "copy.journal"
    shutil.copy(directory / JOURNAL, copy)
    backend = JournalFileBackend(str(copy))
    return optuna.load_study(study_name=None, storage=JournalStorage(backend))


def counts(study: optuna.Study) -> Counter[str]:
    return Counter(trial.state.name for trial in study.trials)


def ids(study: optuna.Study) -> list[str]:
    return [trial.user_attrs["trial_id"] for trial in study.trials]


def resumed(directory: Path, rows: list[Observation]) -> TunedTrials:
    source = search(directory=directory)
    for each in rows:
        source.tell(each)
    return source


def test_optuna_reads_it_while_a_search_runs(tmp_path: Path) -> None:
    source = search(directory=tmp_path)
    rows = swept(source, most=5)
    study = loaded(tmp_path)

    assert study.study_name == tmp_path.name
    assert counts(study) == {"COMPLETE": 5, "RUNNING": 1}
    assert ids(study)[:5] == [each["trial_id"] for each in rows]
    assert study.best_value == max(
        json.loads(each["final_metrics"])["val_acc"] for each in rows
    )
    assert study.metric_names == ["val_acc"]


def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    first = search(directory=tmp_path)
    rows = swept(first, most=5)  # one more was proposed, and did not end
    (begun,) = (t.user_attrs["trial_id"] for t in loaded(tmp_path).trials[5:])

    source = resumed(tmp_path, rows)
    rows += swept(source)
    assert rows[5]["trial_id"] == begun
    assert sorted(ids(loaded(tmp_path))) == sorted(each["trial_id"] for each in rows)
    assert counts(loaded(tmp_path)) == {"COMPLETE": 12}


def test_what_ended_while_no_driver_looked_is_told(tmp_path: Path) -> None:
    source = search(directory=tmp_path)
    one, other = source.ask(), source.ask()
    assert one is not None
    assert other is not None

    again = resumed(tmp_path, [row(each, completed(each)) for each in (one, other)])
    again.ask()
    assert counts(loaded(tmp_path)) == {"COMPLETE": 2, "RUNNING": 1}


def damage(journal: Path, how: str) -> None:
    content = journal.read_bytes()
    lines = content.splitlines(keepends=True)
    match how:
        case "missing":
            journal.unlink()
        case "torn":
            journal.write_bytes(content[:-9])
        case "a begun trial without settings":
            begun = max(n for n, line in enumerate(lines) if b'"op_code":4' in line)
            journal.write_bytes(b"".join(lines[: begun + 1]))
        case "damaged":
            journal.write_bytes(content[:100] + b"\0\0" + content[102:])
        case "empty":
            journal.write_bytes(b"")
        case "of another study":
            journal.unlink()
            backend = JournalFileBackend(str(journal))
            study = optuna.create_study(storage=JournalStorage(backend))
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)


@pytest.mark.parametrize(
    "how",
    [
        *("missing", "torn", "a begun trial without settings", "damaged", "empty"),
        "of another study",
    ],
)
def test_it_is_made_anew_from_what_has_ended(how: str, tmp_path: Path) -> None:
    ends = [{"outcome": "pruned"}, {"outcome": "out_of_memory"}, {"outcome": "failed"}]
    rows = swept(
        search(directory=tmp_path),
        lambda trial: ends.pop() if ends else completed(trial),
        most=6,
    )
    before = loaded(tmp_path)
    damage(tmp_path / JOURNAL, how)

    again = resumed(tmp_path, rows)
    assert again.ask() is not None
    study = loaded(tmp_path)
    told = {"COMPLETE": 3, "PRUNED": 2, "FAIL": 1}
    assert {name: counts(study)[name] for name in told} == told
    by_id = {trial.user_attrs["trial_id"]: trial for trial in study.trials}
    for trial in before.trials[:6]:
        same = by_id[trial.user_attrs["trial_id"]]
        assert same.params == trial.params
        assert same.state == trial.state
        assert same.values == trial.values
        assert same.constraints == trial.constraints
    assert counts(study)["RUNNING"] == 1


def test_it_stays_whole_wherever_a_driver_dies(tmp_path: Path) -> None:
    """A journal that is cut anywhere: each trial is in the study once in the end."""
    whole = tmp_path / "whole"
    whole.mkdir()
    rows = swept(search(directory=whole))
    content = (whole / JOURNAL).read_bytes()
    generator = random.Random(38)
    for number in range(25):
        cut = tmp_path / f"cut{number}"
        cut.mkdir()
        (cut / JOURNAL).write_bytes(content[: generator.randrange(len(content))])
        told = rows[: generator.randrange(12)]
        after = [*told, *swept(resumed(cut, told))]

        assert len(after) == 12
        assert sorted(ids(loaded(cut))) == sorted(each["trial_id"] for each in after)
        assert counts(loaded(cut)) == {"COMPLETE": 12}


def test_a_driver_that_starts_again_does_not_draw_the_same_again(
    tmp_path: Path,
) -> None:
    rows = swept(search(directory=tmp_path), most=4)
    rows += swept(resumed(tmp_path, rows))
    rates = [each["learning_rate"] for each in rows]
    assert len(set(rates)) == 12


def test_changed_ranges_begin_another_study(tmp_path: Path) -> None:
    rows = swept(search(directory=tmp_path))
    wider = RANGES.replace("[0, 0.1]", "[0, 0.2]").replace("12", "16")
    source = search(wider, tmp_path)
    for each in rows:
        source.tell(each)
    assert len(swept(source)) == 4
    assert counts(loaded(tmp_path)) == {"COMPLETE": 16}


def test_more_trials_go_on_in_the_same_study(tmp_path: Path) -> None:
    rows = swept(search(directory=tmp_path))
    source = search(RANGES.replace("12", "14"), tmp_path)
    for each in rows:
        source.tell(each)
    assert len(swept(source)) == 2
    assert loaded(tmp_path).trials[0].user_attrs["trial_id"] == rows[0]["trial_id"]


def test_a_copy_changes_nothing_in_the_run(tmp_path: Path) -> None:
    source = search(directory=tmp_path)
    swept(source, lambda trial: reached(0.5), most=3)
    before = (tmp_path / JOURNAL).read_bytes()

    study: Any = copied(tmp_path / JOURNAL)
    study.set_user_attr("mine", 1)
    study.ask()
    assert counts(study)["COMPLETE"] == 3
    assert (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.parametrize("kind", ["link", "link to a journal", "pipe", "device"])
def test_only_a_regular_file_is_a_journal(kind: str, tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    rows = swept(search(directory=run), most=3)
    journal = run / JOURNAL
    content = journal.read_bytes()
    journal.unlink()
    if kind == "pipe":
        os.mkfifo(journal)
    else:
        outside.write_bytes(content if kind == "link to a journal" else b"x" * 5000)
        journal.symlink_to("/dev/zero" if kind == "device" else outside)

    before = outside.read_bytes() if outside.exists() else b""
    assert resumed(run, rows).ask() is not None
    assert journal.is_file()
    assert not journal.is_symlink()
    assert counts(loaded(run))["COMPLETE"] == 3
    assert (outside.read_bytes() if outside.exists() else b"") == before


def test_a_folder_in_its_place_is_said(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(StoreError, match=r"optuna\.journal cannot be written"):
        search(directory=tmp_path).ask()
