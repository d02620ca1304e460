from __future__ import annotations

import pytest

from scalelab.launch.host_memory import oom_kill_count


@pytest.fixture
def host(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()

    def build(membership, files):
        (tmp_path / "proc/self/cgroup").write_text(membership)
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return oom_kill_count(tmp_path / "cgroup", tmp_path / "proc")

    return build


def test_version_2(host):
    events = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n"
    assert host("0::/job/step\n", {"cgroup/job/step/memory.events": events}) == 2


def test_version_1(host):
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    membership = "5:cpu:/job\n4:hugetlb,memory:/job\n0::/\n"
    assert host(membership, {"cgroup/memory/job/memory.oom_control": control}) == 4


def test_whole_host_where_the_group_shows_nothing(host):
    assert host("0::/\n", {"proc/vmstat": "pgfault 9\noom_kill 5\n"}) == 5
    assert host("", {"proc/vmstat": "pgfault 9\n"}) == 0


def test_this_host_has_a_count():
    assert oom_kill_count() >= 0
