from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watching import ENTRY, STAND_IN

from scalelab.inputs.outcome import Outcome
from scalelab.launch.process_tree import oom_kill_count
from scalelab.records.attempt import AttemptResult


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()

    def build(membership: str, files: dict[str, str]) -> int:
        (tmp_path / "proc/self/cgroup").write_text(membership)
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return oom_kill_count(tmp_path / "cgroup", tmp_path / "proc")

    return build


def test_version_2(host: Callable[..., Any]) -> None:
    events = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n"
    assert host("0::/job/step\n", {"cgroup/job/step/memory.events": events}) == 2


def test_version_1(host: Callable[..., Any]) -> None:
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    membership = "5:cpu:/job\n4:hugetlb,memory:/job\n0::/\n"
    assert host(membership, {"cgroup/memory/job/memory.oom_control": control}) == 4


def test_whole_host_where_the_group_shows_nothing(host: Callable[..., Any]) -> None:
    assert host("0::/\n", {"proc/vmstat": "pgfault 9\noom_kill 5\n"}) == 5
    assert host("", {"proc/vmstat": "pgfault 9\n"}) == 0


def test_this_host_has_a_count() -> None:
    assert oom_kill_count() >= 0


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 700 MiB, where this host lets us make one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        mount, limit = "", "memory.max"
        if controllers == "memory":
            mount, limit = "memory", "memory.limit_in_bytes"
        group = Path("/sys/fs/cgroup", mount, path.lstrip("/"), f"test-{os.getpid()}")
        if not (group.parent / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        if not (group / limit).exists():
            group.rmdir()
            continue
        (group / limit).write_text(str(700 << 20))
        yield group
        group.rmdir()
        return
    # A machine gives it or not: nothing that CI could install would.
    pytest.skip("no control group with a memory limit can be made here")


@pytest.mark.slow
def test_kernel_kills_the_rank_and_the_agent_says_why(
    small_group: Any, make_spec: Any, tmp_path: Path
) -> None:
    spec = make_spec("eat_memory")
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    script = f"""
import json, os, sys
from pathlib import Path
from scalelab.launch.gang_agent import NodeAgent
from scalelab.records.attempt import AttemptSpec
Path({str(small_group)!r}, "cgroup.procs").write_text(str(os.getpid()))
spec = AttemptSpec.from_json(json.loads(Path(sys.argv[1]).read_text()))
with NodeAgent("n", "cpu", (), entry={ENTRY!r}, search_path=({str(STAND_IN)!r},)) as a:
    print(json.dumps(a.run(spec, 0, None).to_json()))
"""
    output = subprocess.check_output(
        [sys.executable, "-c", script, str(tmp_path / "spec.json")], text=True
    )
    result = AttemptResult.from_json(json.loads(output))
    assert (result.outcome, result.rank) == (Outcome.HOST_OUT_OF_MEMORY, 1)
    assert result.reason == (
        "rank 1 was killed by the kernel: the node ran out of memory"
    )
