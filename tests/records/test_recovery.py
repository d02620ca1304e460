import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from scalelab.errors import StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult, read_result, write_result
from scalelab.records.store import RunStore


@pytest.fixture
def reopened(store: RunStore) -> Callable[..., Any]:
    """Open the run as the next driver does."""
    return lambda: RunStore.open(store.directory)


def test_attempts_left_running_end_as_node_fail(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    driver = reopened()
    assert driver.finished(driver.recover()) == []
    (observation,) = driver.rows()
    assert observation["outcome"] == "node_fail"
    assert (
        observation["reason"] == "The driver of the sweep ended before the attempt did."
    )
    assert read_result(spec.files).outcome is Outcome.NODE_FAIL
    assert driver.outcomes(spec.trial.trial_id) == Counter([Outcome.NODE_FAIL])
    assert driver.running() == ()
    assert driver.next_attempt_number(spec.trial.trial_id) == 2


def test_where_the_trials_are_a_link_nothing_is_forgotten(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    store.finish(spec, AttemptResult(outcome=Outcome.COMPLETED))
    ledger = (store.directory / "ledger.jsonl").read_bytes()
    elsewhere = store.directory.parent / "elsewhere"
    (store.directory / "trials").rename(elsewhere)
    (store.directory / "trials").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="trials cannot be read: trials is a link"):
        reopened().recover()
    assert (store.directory / "ledger.jsonl").read_bytes() == ledger


def test_what_was_half_written_is_deleted(
    store: RunStore,
    make_spec: Callable[..., Any],
    lost: AttemptResult,
    reopened: Callable[..., Any],
) -> None:
    spec = make_spec()
    store.begin(spec)
    run, mark = store.directory, "0123456789abcdef" * 2
    halves = [
        run / f".ledger.jsonl.{mark}",
        run / "cache" / f".observations.parquet.{mark}",
        run / "code" / f".{mark}",
        spec.files.directory / f".result.json.{mark}",
    ]
    kept = [run / f".driver.lease.{mark}", run / ".notes", spec.files.directory / ".x"]
    for path in [*halves, *kept]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    halves[2].unlink()
    (halves[2] / "folder").mkdir(parents=True)
    reopened().recover()
    assert not any(path.exists() for path in halves)
    assert all(path.exists() for path in kept)


def test_what_others_may_have_written_is_deleted_when_it_is_old(
    store: RunStore,
    reopened: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, mark = store.directory, "0123456789abcdef" * 2
    halves = [run / f".driver.lease.{mark}", run.with_name(f".{run.name}.{mark}")]
    for path in halves:
        path.touch()
    reopened().recover()
    assert all(path.exists() for path in halves)
    in_a_while = time.time() + 90
    monkeypatch.setattr(time, "time", lambda: in_a_while)
    reopened().recover()
    assert not any(path.exists() for path in halves)


def test_a_result_the_ledger_missed_counts_once(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    reopened: Callable[..., Any],
) -> None:
    spec = make_spec()
    store.begin(spec)
    write_result(spec.files, measured)
    for _ in range(3):
        driver = reopened()
        (observation,) = driver.finished(driver.recover())
        assert observation["outcome"] == "completed"
        assert len(driver.rows()) == 1


@pytest.mark.parametrize("damage", ["delete", "tear", "zero", "garble", "empty"])
def test_a_damaged_ledger_is_rebuilt(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    lost: AttemptResult,
    reopened: Callable[..., Any],
    damage: str,
) -> None:
    for seed, results in enumerate([[measured], [lost, measured], [lost]]):
        for result in results:
            spec = make_spec(seed)
            store.begin(spec)
            store.finish(spec, result)
    before = store.rows()
    ledger = store.directory / "ledger.jsonl"
    content = ledger.read_bytes()
    middle = content.index(b"\n", len(content) // 2) + 1
    match damage:
        case "delete":
            ledger.unlink()
        case "tear":
            ledger.write_bytes(content[:-30])
        case "zero":
            ledger.write_bytes(content[:middle] + bytes(len(content) - middle))
        case "garble":
            ledger.write_bytes(content[:middle] + b"?\n" + content[middle:])
        case "empty":
            ledger.write_bytes(b"")
    read_only = reopened().rows()
    driver = reopened()
    counting = driver.finished(driver.recover())
    assert [row["outcome"] for row in counting] == ["completed", "completed"]

    def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: (row["seed"], row["attempt"]))

    assert ordered(driver.rows()) == ordered(before)
    if damage in ("delete", "garble"):
        assert ordered(read_only) == ordered(before)
    ended = [driver.outcomes(row["trial_id"]) for row in ordered(before)[1:3]]
    assert ended == [Counter([Outcome.NODE_FAIL, Outcome.COMPLETED])] * 2
    again = reopened()
    assert ordered(again.finished(again.recover())) == ordered(counting)
    spec = make_spec(9)
    again.begin(spec)
    again.finish(spec, measured)
    assert len(reopened().rows()) == len(before) + 1


def test_a_torn_result_is_kept_aside(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    spec.files.result.write_bytes(b'{"outcome":"compl')
    driver = reopened()
    assert driver.finished(driver.recover()) == []
    (observation,) = driver.rows()
    assert observation["outcome"] == "node_fail"
    assert "kept as result.json.torn" in observation["reason"]
    aside = spec.files.directory / "result.json.torn"
    assert aside.read_bytes() == b'{"outcome":"compl'


def test_a_result_with_a_wrong_measurement_is_kept_aside(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    wrong = AttemptResult(outcome=Outcome.COMPLETED, measurements={"speed": 1})
    write_result(spec.files, wrong)
    driver = reopened()
    assert driver.rows() == driver.finished(driver.recover()) == []
    (observation,) = driver.rows()
    assert "measurements['speed']=1 is no column" in observation["reason"]
    assert (spec.files.directory / "result.json.torn").exists()


def test_results_that_cannot_be_read_are_not_thrown_away(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    spec.files.result.mkdir()
    with pytest.raises(
        StoreError, match=r"result\.json cannot be read: it is a directory"
    ):
        reopened().recover()


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_an_attempt_that_was_never_written_down_is_skipped(
    store: RunStore,
    make_spec: Callable[..., Any],
    reopened: Callable[..., Any],
    content: bytes | None,
) -> None:
    spec = make_spec()
    store.begin(spec)
    spec.files.spec.unlink()
    if content is not None:
        spec.files.spec.write_bytes(content)
    driver = reopened()
    assert driver.recover() == driver.rows() == []
    assert driver.next_attempt_number(spec.trial.trial_id) == 2


def test_a_deleted_attempt_is_forgotten(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    reopened: Callable[..., Any],
) -> None:
    specs = [make_spec(seed) for seed in range(2)]
    for spec in specs:
        store.begin(spec)
        store.finish(spec, measured)
    shutil.rmtree(specs[0].files.directory)
    driver = reopened()
    (kept,) = driver.recover()
    assert kept["seed"] == 1
    assert driver.rows() == [kept]
    assert driver.next_attempt_number(specs[0].trial.trial_id) == 1


def test_strangers_among_the_directories_are_ignored(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    reopened: Callable[..., Any],
) -> None:
    spec = make_spec()
    store.begin(spec)
    store.finish(spec, measured)
    trials = store.directory / "trials"
    (trials / "README").write_text("")
    (trials / spec.trial.trial_id / "notes").mkdir()
    (store.directory / "ledger.jsonl").unlink()
    assert len(reopened().recover()) == 1


def test_only_trials_that_need_not_run_again_have_finished(
    store: RunStore, make_spec: Callable[..., Any], reopened: Callable[..., Any]
) -> None:
    for seed, outcome in enumerate(Outcome):
        spec = make_spec(seed)
        store.begin(spec)
        store.finish(spec, AttemptResult(outcome=outcome, reason="r"))
    driver = reopened()
    returned = {row["outcome"] for row in driver.finished(driver.recover())}
    assert returned == {str(each) for each in Outcome if not each.is_retried}


def test_the_first_recovery_of_a_new_run_is_empty(store: RunStore) -> None:
    assert store.recover() == []
    assert os.path.getsize(store.directory / "ledger.jsonl") == 0
