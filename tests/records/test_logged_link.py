"""The link between nodes is read of NCCL's own lines in a trial's log.

No machine here has RDMA: the lines are written as public logs of NCCL have them.
"""

import os
from pathlib import Path

import pytest
from measured_runs import COMMAND, measured_run

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.store import logged_link
from scalelab.session import answer_text, load

ADAPTER = (
    "n1:24302:24302 [{rank}] NCCL INFO NET/IB: [{place}] {name}:uverbs{place}:1/RoCE "
    "provider=Mlx5 speed={speed} context=0xc53b90db27f0 pciPath=/sys/devices/pci0000:00"
    "/0000:00:00.0/0000:01:00.0 ar=0\n"
    "n1:24302:24302 [{rank}] NCCL INFO NET/IB : Made virtual device [{place}] "
    "name={name} speed={speed} ndevs=1\n"
)
WITHOUT_RDMA = (
    "n1:3:3 [0] NCCL INFO NET/IB : No device found.\n"
    "n1:3:3 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>\n"
)


def adapters(count: int, mbit_per_s: int, rank: int = 0) -> str:
    return "step 1 samples 32\n" + "".join(
        ADAPTER.format(rank=rank, place=place, name=f"mlx5_{place}", speed=mbit_per_s)
        for place in range(count)
    )


def logged(trials: Path, trial: str, text: str, at_s: int = 0) -> Path:
    path = trials / trial / "001" / "rank-0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(trials / trial, (at_s, at_s))
    return path


@pytest.mark.parametrize(
    ("text", "gbit_per_s"),
    [
        (adapters(1, 200_000), 200),
        (adapters(4, 100_000), 400),
        # two processes in one log name the same adapters
        (adapters(2, 100_000) + adapters(2, 100_000, rank=1), 200),
    ],
)
def test_the_adapters_of_a_node_are_added_up(
    tmp_path: Path, text: str, gbit_per_s: float
) -> None:
    logged(tmp_path, "a", text)
    link = logged_link(tmp_path)
    assert link is not None
    assert str(link) == f"{gbit_per_s}Gbit/s"


@pytest.mark.parametrize("text", ["", "step 1 samples 32\n", WITHOUT_RDMA])
def test_a_log_without_adapters_says_nothing(tmp_path: Path, text: str) -> None:
    assert logged_link(tmp_path / "none") is None
    logged(tmp_path, "a", text)
    assert logged_link(tmp_path) is None


def test_the_latest_log_that_says_one_counts(tmp_path: Path) -> None:
    logged(tmp_path, "a", adapters(1, 100_000), at_s=1)
    logged(tmp_path, "b", adapters(1, 400_000), at_s=2)
    logged(tmp_path, "c", WITHOUT_RDMA, at_s=3)
    path = logged(tmp_path, "d", "", at_s=4)
    path.unlink()
    path.mkdir()  # no file, and not waited for
    link = logged_link(tmp_path)
    assert link is not None
    assert str(link) == "400Gbit/s"


def said(answer: Recommendation) -> str:
    return " ".join(answer_text(answer, 100, explain=True).split())


def test_an_answer_rests_on_the_logged_link_and_says_so(tmp_path: Path) -> None:
    text = COMMAND.replace("[1, 2, 4, 8, 16]", "[1, 2, 4]")
    (tmp_path / "train.py").write_text("")
    measured_run(tmp_path / "run", text)
    asked = {"gpus": [4, 8], "batch": 128}
    before = load(tmp_path / "run").recommend(**asked)
    assert "no link is named" in said(before)
    for attempt in (tmp_path / "run" / "trials").glob("*/001"):
        (attempt / "rank-0.log").write_text(adapters(4, 100_000))
    after = load(tmp_path / "run").recommend(**asked)
    assert (
        "Believed, not measured: 400Gbit/s between nodes, as NCCL's log has it"
        in said(after)
    )
    widths = [
        answer.rows[-1].time_s.hi / answer.rows[-1].time_s.lo
        for answer in (before, after)
    ]
    assert widths[1] < widths[0]
    stated = load(tmp_path / "run").recommend(**asked, between_nodes="100Gbit/s")
    assert "100Gbit/s between nodes." in said(stated)
