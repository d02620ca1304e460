import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from os import stat_result
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from scalelab.errors import LeaseError, SchemaError, StoreError
from scalelab.inputs.outcome import Outcome
from scalelab.records import attempt
from scalelab.records.attempt import AttemptResult, read_result, write_result
from scalelab.records.cache import write_table
from scalelab.records.store import RunStore


def test_a_run_is_made_and_opened(tmp_path: Path) -> None:
    made = RunStore.create(
        tmp_path / "runs" / "vit b16",
        experiment_text="name: v\n",
        fingerprint={"a": [1]},
    )
    opened = RunStore.open(tmp_path / "runs" / "vit b16")
    for store in (made, opened):
        assert store.name == "vit b16"
        assert store.fingerprint == {"a": [1]}
        assert store.experiment_text == "name: v\n"
        assert store.directory == tmp_path / "runs" / "vit b16"
        assert store.rows() == []
        assert len(store.observations()) == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["vit b16"]


def test_a_run_keeps_its_name_when_moved(store: RunStore, tmp_path: Path) -> None:
    store.directory.rename(tmp_path / "moved")
    assert RunStore.open(tmp_path / "moved").name == "a run"


def test_a_run_is_made_once(store: RunStore) -> None:
    with pytest.raises(StoreError, match=r"a run exists already. Choose another name"):
        RunStore.create(store.directory, experiment_text="", fingerprint={})


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file exists already"):
        RunStore.create(tmp_path / "file", experiment_text="", fingerprint={})
    with pytest.raises(StoreError, match="cannot be written: Not a directory"):
        RunStore.create(tmp_path / "file" / "run", experiment_text="", fingerprint={})


def test_an_empty_directory_becomes_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunStore.create(tmp_path / "run", experiment_text="x", fingerprint={})
    assert RunStore.open(tmp_path / "run").experiment_text == "x"


def test_what_is_no_run_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no runs lie
    with pytest.raises(
        StoreError, match=r"is not a run directory \(no run\.json\)\. .*NAME"
    ):
        RunStore.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"schema_ver'),
        '{"schema_version":1,"name":"a","versions":[]}',
        *(
            '{"schema_version":1,"name":"a","versions":[{"experiment":"0001.yaml",'
            f'"meaning":{meaning}}}]}}'
            for meaning in (
                "3",
                '["env"]',
                '{"env":"A=1"}',
                '{"env":[1]}',
                '{"env":{"a":{}}}',
            )
        ),
    ],
)
def test_a_broken_header_is_said(store: RunStore, content: str) -> None:
    (store.directory / "run.json").write_text(content)
    with pytest.raises(StoreError, match=r"run\.json is not the header of a run"):
        RunStore.open(store.directory)


def test_a_newer_run_is_refused(store: RunStore) -> None:
    path = store.directory / "run.json"
    path.write_text(
        path.read_text().replace('"schema_version":4', '"schema_version":5')
    )
    with pytest.raises(SchemaError, match=r"schema_version=5; .* up to 4\. Install"):
        RunStore.open(store.directory)


def test_a_missing_experiment_is_said(store: RunStore) -> None:
    (store.directory / "experiments" / "0001.yaml").unlink()
    with pytest.raises(StoreError, match=r"0001\.yaml cannot be read"):
        _ = store.experiment_text


def test_every_version_of_the_experiment_is_kept(store: RunStore) -> None:
    store.extend("name: b\n", {"model": "large"})
    store.extend("name: b\n", {"model": "large"})
    reopened = RunStore.open(store.directory)
    assert reopened.experiment_text == store.experiment_text == "name: b\n"
    assert reopened.fingerprint == store.fingerprint == {"model": "large"}
    files = sorted(os.listdir(store.directory / "experiments"))
    assert files == ["0001.yaml", "0002.yaml"]
    versions = json.loads((store.directory / "run.json").read_text())["versions"]
    assert [version["meaning"]["model"] for version in versions] == ["small", "large"]
    assert versions[0]["provenance"]["versions"]["python"]


def test_the_latest_site_is_kept(store: RunStore) -> None:
    assert store.site is None
    store.extend(store.experiment_text, store.fingerprint, site="alpine")
    assert RunStore.open(store.directory).site == store.site == "alpine"
    store.extend(store.experiment_text, store.fingerprint, site="alpine")
    files = sorted(os.listdir(store.directory / "experiments"))
    assert files == ["0001.yaml", "0002.yaml"]


def test_an_attempt_is_begun_and_finished(
    store: RunStore, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    spec = make_spec()
    store.begin(spec)
    assert store.running() == ((spec.trial.trial_id, 1),)
    assert store.rows() == []
    observation = store.finish(spec, measured)
    assert observation["step_time_s"] == 0.0125
    assert read_result(spec.files) == measured
    assert store.running() == ()
    assert store.rows() == [observation]
    assert store.next_attempt_number(spec.trial.trial_id) == 2
    assert store.outcomes(spec.trial.trial_id) == Counter([Outcome.COMPLETED])
    assert store.outcomes("another") == Counter()


def test_an_attempt_is_begun_once(
    store: RunStore, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    with pytest.raises(StoreError, match="this attempt was begun before"):
        store.begin(spec)
    assert spec.files.spec.exists()


def test_a_local_measurement_is_not_read_again(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_spec()
    store.begin(spec)
    write_result(spec.files, measured)
    monkeypatch.setattr(Path, "read_bytes", None)
    monkeypatch.setattr(attempt.os, "fsync", None)
    assert store.finish(spec, measured)["outcome"] == "completed"


def test_a_measurement_outdoes_a_declared_loss(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    lost: AttemptResult,
) -> None:
    spec = make_spec()
    store.begin(spec)
    write_result(spec.files, measured)
    assert store.finish(spec, lost)["outcome"] == "completed"
    assert store.finish(spec, lost, replace=True)["outcome"] == "node_fail"
    assert read_result(spec.files) == lost


def test_the_verdict_over_all_nodes_stands(
    store: RunStore, make_spec: Callable[..., Any], lost: AttemptResult
) -> None:
    spec = make_spec(0, (2, 2))
    store.begin(spec)
    echo = AttemptResult(outcome=Outcome.FAILED, reason="Connection closed by peer.")
    write_result(spec.files, echo)
    verdict = AttemptResult(outcome=Outcome.OUT_OF_MEMORY, reason="Rank 3.", rank=3)
    assert store.finish(spec, verdict)["outcome"] == "out_of_memory"
    assert read_result(spec.files) == verdict


def test_a_torn_result_is_overwritten_by_the_verdict(
    store: RunStore, make_spec: Callable[..., Any], lost: AttemptResult
) -> None:
    spec = make_spec()
    store.begin(spec)
    spec.files.result.write_text("{")
    assert store.finish(spec, lost)["outcome"] == "node_fail"
    assert read_result(spec.files) == lost


def test_a_wrong_measurement_leaves_no_trace(
    store: RunStore, make_spec: Callable[..., Any]
) -> None:
    spec = make_spec()
    store.begin(spec)
    wrong = AttemptResult(outcome=Outcome.COMPLETED, measurements={"speed": 1})
    with pytest.raises(StoreError, match=r"measurements\['speed'\]=1 is no column"):
        store.finish(spec, wrong)
    assert not spec.files.result.exists()
    assert store.running() == ((spec.trial.trial_id, 1),)


def test_observations_have_one_row_per_ended_attempt(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    lost: AttemptResult,
) -> None:
    for result in (lost, measured):
        spec = make_spec()
        store.begin(spec)
        store.finish(spec, result)
    store.begin(make_spec(1))
    observations = store.observations()
    assert observations["attempt"].tolist() == [1, 2]
    assert observations["outcome"].tolist() == ["node_fail", "completed"]


@pytest.mark.slow
def test_the_cache_gives_the_same_frame_and_follows_the_ledger(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    lost: AttemptResult,
) -> None:
    cached = store.directory / "cache" / "observations.parquet"
    for seed, result in enumerate((measured, lost)):
        spec = make_spec(seed, options={"feed": "ram", "depth": seed})
        store.begin(spec)
        store.finish(spec, result)
        fresh = store.observations()
        assert len(fresh) == seed + 1
        before = cached.stat().st_mtime_ns
        pd.testing.assert_frame_equal(store.observations(), fresh)
        assert cached.stat().st_mtime_ns == before
    for damage in (b"", b"PAR1", cached.read_bytes()[:-100]):
        cached.write_bytes(damage)
        pd.testing.assert_frame_equal(store.observations(), fresh)
    # of before there were node groups
    former = pa.Table.from_pandas(fresh.drop(columns="node_group"))
    write_table(cached, former, store.state, {})
    pd.testing.assert_frame_equal(store.observations(), fresh)


def test_a_pending_result_is_seen_but_not_cached(
    store: RunStore, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    spec = make_spec()
    store.begin(spec)
    assert len(store.observations()) == 0
    write_result(spec.files, measured)
    assert store.observations()["outcome"].tolist() == ["completed"]
    assert not (store.directory / "cache").exists()


def test_a_driver_without_its_lease_writes_nothing(
    store: RunStore, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    first, second = make_spec(0), make_spec(1)
    with store.lease():
        store.begin(first)
        (store.directory / "driver.lease").unlink()
        for write in (
            lambda: store.finish(first, measured),
            lambda: store.begin(second),
            lambda: store.extend("x", {}),
            store.recover,
        ):
            with pytest.raises(
                LeaseError, match=r"lost its lease .*: the file is gone"
            ):
                write()
    assert store.rows() == []
    store.finish(first, measured)


def test_the_lease_ends_with_the_block(store: RunStore) -> None:
    for _ in range(2):
        with store.lease(heartbeat_s=0.01):
            assert (store.directory / "driver.lease").exists()
        assert not (store.directory / "driver.lease").exists()


def test_opening_a_run_loads_no_heavy_package(store: RunStore) -> None:
    code = (
        "import sys; from pathlib import Path; from scalelab.records.store import "
        "RunStore; import scalelab.reading.tables.importing; "
        "print(len(RunStore.open(Path(sys.argv[1])).rows()), *sys.modules)"
    )
    command = [sys.executable, "-c", code, str(store.directory)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "pandas", "pyarrow", "torch", "distributed"}


def test_nothing_in_a_run_is_executed(
    store: RunStore, make_spec: Callable[..., Any], measured: AttemptResult
) -> None:
    spec = make_spec()
    store.begin(spec)
    (spec.files.directory / "result.json").write_bytes(b"cos\nsystem\n(S'exit'\ntR.")
    (store.directory / "sitecustomize.py").write_text("raise SystemExit(9)")
    assert store.finished(store.recover()) == []
    assert store.rows()[0]["outcome"] == "node_fail"


def test_the_cost_of_an_attempt_does_not_grow(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Count what the operating system is asked; times would measure the machine."""
    calls: Counter[str] = Counter()
    for name in ("open", "write", "stat", "listdir", "scandir", "mkdir", "lseek"):
        real = getattr(os, name)

        def counted(
            *args: bytes | int | Path,
            _real: Callable[..., Any] = real,
            _name: str = name,
            **kwargs: bool,
        ) -> int | stat_result | None:
            calls[_name] += 1
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, counted)
    counts = []
    with store.lease():
        for seed in range(60):
            spec = make_spec(seed)
            calls.clear()
            store.begin(spec)
            store.finish(spec, measured)
            counts.append(dict(calls))
    assert counts[1] == counts[-1]
    assert counts[-1].get("listdir", 0) == counts[-1].get("scandir", 0) == 0


def test_the_experiment_is_read_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    text = "name: x  # caf\u00e9\n"
    RunStore.create(tmp_path / "run", experiment_text=text, fingerprint={})
    code = (
        "import sys; from pathlib import Path; "
        "from scalelab.records.store import RunStore; "
        "text = RunStore.open(Path(sys.argv[1])).experiment_text; "
        "sys.exit(text != sys.argv[2].encode().decode('unicode_escape'))"
    )
    arguments = [str(tmp_path / "run"), text.encode("unicode_escape").decode()]
    subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, *arguments],
        env={**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
        check=True,
        timeout=60,
    )
