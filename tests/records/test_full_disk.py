"""Disks that are full or forbidden: an error that says so, and nothing half-written."""

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from promised import skip_or_fail
from whole_files import check_nothing_lost, check_whole

from scalelab.errors import StoreError
from scalelab.records.attempt import AttemptResult
from scalelab.records.store import RunStore

PRELUDE = """
    import os, resource, sys
    from pathlib import Path
    from scalelab.errors import StoreError
    from scalelab.experiment.program import WorkloadProgram
    from scalelab.experiment.trial import Trial, TrialKind
    from scalelab.inputs.allocation import Allocation
    from scalelab.records.attempt import *
    from scalelab.records.attempt import write_result
    from scalelab.records.store import RunStore

    directory = Path(sys.argv[1])
    shares = (NodeShare(node="n", device_ids=("0",)),)
    result = AttemptResult(
        outcome=Outcome.COMPLETED,
        measurements={"step_time_s": 0.5, "dataset": "d" * 900},
    )

    def next_spec(store, seed):
        trial = Trial(
            kind=TrialKind.THROUGHPUT, workload="digits_mlp", local_batch_size=1,
            allocation=Allocation(devices_per_node=(1,)), seed=seed,
        )
        number = store.next_attempt_number(trial.trial_id)
        return AttemptSpec(
            run=store.name, trial=trial, program=WorkloadProgram(name="digits_mlp"),
            number=number, placement=Placement(shares=shares), device_type="cpu",
            directory=str(store.attempt_directory(trial.trial_id, number)),
        )
"""
SWEEP = """
    if os.environ.get("LIMIT"):
        limit = int(os.environ["LIMIT"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        store = RunStore.open(directory)
        with store.lease():
            store.recover()
            for seed in range(100_000):
                spec = next_spec(store, seed)
                store.begin(spec)
                write_result(spec.files, result)
                store.finish(spec, result)
                print(spec.attempt_id, flush=True)
    except StoreError as error:
        sys.exit(str(error))
"""
CREATE = """
    try:
        RunStore.create(directory / "new", experiment_text="x", fingerprint={})
    except StoreError as error:
        sys.exit(str(error))
"""


def run(
    script: str, *arguments: Path, limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script, not measured for coverage: that writes files of its own."""
    env = {name: os.environ[name] for name in os.environ if name[:3] != "COV"}
    if limit is not None:
        env["LIMIT"] = str(limit)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRELUDE + script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=env,
    )


@pytest.mark.parametrize("limit", [1_000, 1_500, 2_000, 9_000, 10_111, 30_003])
def test_a_full_disk_loses_no_finished_attempt(store: RunStore, limit: int) -> None:
    done = run(SWEEP, store.directory, limit=limit)
    assert done.returncode == 1
    assert "cannot be written: File too large. Free space" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert "it resumes." in done.stderr
    finished = done.stdout.split()
    check_nothing_lost(RunStore.open(store.directory), finished)
    assert not (store.directory / "driver.lease").exists()

    resumed = RunStore.open(store.directory)
    with resumed.lease():
        counting = resumed.finished(resumed.recover())
    assert {f"{row['trial_id']}-{row['attempt']}" for row in counting} >= set(finished)
    check_nothing_lost(resumed, finished)


@pytest.fixture
def files_of_at_most() -> Callable[..., Any]:
    """Return a block in which this process cannot write files beyond a size."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


def test_an_attempt_that_cannot_be_written_down_is_not_begun(
    store: RunStore,
    make_spec: Callable[..., Any],
    measured: AttemptResult,
    files_of_at_most: Callable[..., Any],
) -> None:
    first, second, third = (make_spec(seed) for seed in range(3))
    store.begin(first)
    with files_of_at_most(300), pytest.raises(StoreError, match="File too large"):
        store.begin(second)
    for spec in range(3, 40):
        store.begin(make_spec(spec))
    size = store.directory.joinpath("ledger.jsonl").stat().st_size
    assert size > first.files.spec.stat().st_size + 50
    with files_of_at_most(size + 50), pytest.raises(StoreError, match=r"ledger\.jsonl"):
        store.begin(third)
    for spec in (second, third):
        assert not spec.files.directory.exists()
        store.begin(spec)
    with files_of_at_most(size), pytest.raises(StoreError, match="File too large"):
        store.finish(first, measured)
    check_whole(store)
    assert store.rows()[0]["outcome"] == "completed"


def test_a_small_file_system_that_fills_up(
    tmp_path: Path, require_program: Callable[..., Any]
) -> None:
    if os.geteuid() != 0:
        skip_or_fail("a file system can be mounted by root only")
    mount, umount = require_program("mount"), require_program("umount")
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run([mount, *options], check=False, capture_output=True).returncode:
        skip_or_fail("no file system can be mounted here")
    try:
        store = RunStore.create(disk / "run", experiment_text="x", fingerprint={})
        done = run(SWEEP, store.directory)
        assert "cannot be written: No space left on device. Free space" in done.stderr
        finished = done.stdout.split()
        assert finished
        check_nothing_lost(RunStore.open(store.directory), finished)
        assert len(RunStore.open(store.directory).observations()) >= len(finished)
    finally:
        subprocess.run([umount, str(disk)], check=True)


BECOME_SOMEBODY_ELSE = """
    if os.geteuid() == 0:  # once everything is imported: the packages may be root's
        import tempfile
        with tempfile.TemporaryDirectory() as rehearsal:
            store = RunStore.create(
                Path(rehearsal) / "run", experiment_text="x", fingerprint={}
            )
            with store.lease():
                store.observations(), store.streams()
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that everybody may reach; those of pytest are private."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.mark.slow
def test_a_directory_one_may_not_write_to_is_said(public: Path) -> None:
    public.chmod(0o555)
    done = run(BECOME_SOMEBODY_ELSE + CREATE, public)
    public.chmod(0o755)
    assert f"{public / 'new'} cannot be written: Permission denied" in done.stderr
    assert "Give yourself write permission there or choose another" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(public) == []


@pytest.mark.slow
def test_somebody_elses_run_is_read_but_not_run(public: Path) -> None:
    few = SWEEP.replace("100_000", "3")
    store = RunStore.create(public / "run", experiment_text="x", fingerprint={})
    assert run(few, store.directory).returncode == 0
    store.directory.chmod(0o555)
    read = """
    store = RunStore.open(directory)
    print(len(store.observations()), len(store.streams()))
    """
    done = run(BECOME_SOMEBODY_ELSE + read, store.directory)
    assert (done.stdout.split(), done.stderr) == (["3", "0"], "")
    done = run(BECOME_SOMEBODY_ELSE + SWEEP, store.directory)
    store.directory.chmod(0o755)
    assert "driver.lease cannot be written: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(store.rows()) == 3
