import json
import os
from pathlib import Path

import pytest

from scalelab.errors import StoreError
from scalelab.experiment.program import CommandProgram, MetricsSource, WorkloadProgram
from scalelab.experiment.trial import Measurement, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.target import MetricMode, Target
from scalelab.records import attempt
from scalelab.records.attempt import (
    AttemptFiles,
    AttemptResult,
    AttemptSpec,
    NodeShare,
    Placement,
    TornRecordError,
    encode_json,
    read_result,
    read_spec,
    write_atomically,
    write_result,
    write_spec,
)


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    return AttemptFiles(tmp_path)


def test_a_result_survives_the_round_trip(files: AttemptFiles) -> None:
    result = AttemptResult(
        outcome=Outcome.OUT_OF_MEMORY,
        reason="Rank 1 ran out of memory.",
        rank=1,
        traceback="Traceback ...",
        log="rank-1.log",
        measurements={"gpu_memory_peak_bytes": 2**33, "hosts": ["a", "b"]},
    )
    write_result(files, result)
    assert read_result(files) == result
    assert os.listdir(files.directory) == ["result.json"]


@pytest.mark.parametrize(
    "program",
    [
        WorkloadProgram(name="digits_mlp", parameters={"width": 64}),
        CommandProgram(
            command="python t.py",
            launcher="torchrun",
            env={"A": "1"},
            metrics=MetricsSource(regex=("(?P<step>.*)",)),
            code_directory="/code/0123",
        ),
    ],
)
def test_a_specification_survives_the_round_trip(
    tmp_path: Path, program: WorkloadProgram | CommandProgram
) -> None:
    target = Target(metric="val_acc", mode=MetricMode.MAX, value=0.9)
    spec = AttemptSpec(
        run="r",
        trial=Trial(
            kind=TrialKind.CONVERGENCE,
            workload="digits_mlp",
            allocation=Allocation(devices_per_node=(4, 2)),
            local_batch_size=8,
            options={"feed": "disk"},
            measurement=Measurement(target=target),
        ),
        program=program,
        number=3,
        directory=str(tmp_path / "003"),
        placement=Placement(
            shares=(NodeShare(node="n0", device_ids=("0", "1", "2", "3")),)
        ),
        device_type="cuda",
        validity=("shared_node",),
    )
    write_spec(spec.files, encode_json(spec.to_json()))
    assert read_spec(spec.files) == spec
    with pytest.raises(StoreError, match=r"003 exists: this attempt was begun before"):
        write_spec(spec.files, b"")


def test_nothing_written_is_none(files: AttemptFiles) -> None:
    assert read_result(files) is None
    assert read_spec(files) is None


def test_the_first_result_stands_unless_replaced(files: AttemptFiles) -> None:
    first = AttemptResult(outcome=Outcome.COMPLETED)
    late = AttemptResult(outcome=Outcome.STALLED, reason="No progress.")
    write_result(files, first)
    write_result(files, late)
    assert read_result(files) == first
    write_result(files, late, replace=True)
    assert read_result(files) == late


def test_replacing_a_result_by_itself_writes_nothing(files: AttemptFiles) -> None:
    result = AttemptResult(outcome=Outcome.COMPLETED)
    write_result(files, result)
    before = files.result.stat().st_ino
    write_result(files, result, replace=True)
    assert files.result.stat().st_ino == before


def test_values_that_are_not_finite_are_missing(files: AttemptFiles) -> None:
    losses = {"final_metric": float("nan"), "energy_j": float("inf"), "hosts": ["h"]}
    write_result(files, AttemptResult(outcome=Outcome.COMPLETED, measurements=losses))
    result = read_result(files)
    assert result is not None
    assert result.measurements == {
        "final_metric": None,
        "energy_j": None,
        "hosts": ["h"],
    }
    assert encode_json([float("nan"), (1.5, "x")]) == b'[null,[1.5,"x"]]'


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(StoreError, match=r"cannot be recorded: .* set .*\.item\(\)"):
        encode_json({"hosts": {"a"}})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"outcome":"comp',
        b"[]",
        b"\xff\xfe",
        b'{"outcome":"won"}',
        b'{"outcome":"completed","measurements":{"step_time_s":NaN}}',
        b'{"outcome":"completed","surprise":1}',
    ],
)
def test_a_torn_result_is_named(files: AttemptFiles, content: bytes) -> None:
    files.result.write_bytes(content)
    with pytest.raises(TornRecordError, match=r"result\.json is torn or was changed"):
        read_result(files)


@pytest.mark.parametrize("content", [b"{}", b"[]", b'"x"', b"{", b'{"trial":{}}'])
def test_a_torn_specification_is_named(files: AttemptFiles, content: bytes) -> None:
    files.spec.write_bytes(content)
    with pytest.raises(TornRecordError, match=r"attempt\.json is torn or was changed"):
        read_spec(files)


def test_an_unreadable_file_is_not_called_torn(files: AttemptFiles) -> None:
    files.result.mkdir()
    said = r"result\.json cannot be read: it is a directory"
    with pytest.raises(StoreError, match=said) as caught:
        read_result(files)
    assert not isinstance(caught.value, TornRecordError)


def test_a_reader_never_sees_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, b"old")
    seen = []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        seen.append(path.read_bytes())
        fsync(descriptor)

    monkeypatch.setattr(attempt.os, "fsync", look)
    write_atomically(path, b"new")
    assert (seen, path.read_bytes()) == ([b"old"], b"new")


def test_short_writes_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(attempt.os, "write", lambda at, content: write(at, content[:3]))
    write_atomically(tmp_path / "x", b"0123456789")
    assert (tmp_path / "x").read_bytes() == b"0123456789"


def test_one_result_costs_one_flush(
    files: AttemptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    monkeypatch.setattr(attempt.os, "fsync", flushes.append)
    write_result(files, AttemptResult(outcome=Outcome.COMPLETED))
    assert len(flushes) == 1


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gone/x cannot be written: No such file"):
        write_atomically(tmp_path / "gone" / "x", b"")


def test_json_is_compact_and_plain() -> None:
    values = {"a": [1, 2.5, None, True], "b": "text"}
    assert json.loads(encode_json(values)) == values
    assert encode_json(values) == b'{"a":[1,2.5,null,true],"b":"text"}'
