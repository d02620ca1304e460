"""The first lines of an answer argue: five outputs, read at the width of a terminal."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from five_outputs import JOB, OUTPUTS, PICTURES, five_runs

from scalelab.session import load

ALLOCATION = re.compile(
    r"^(?:Use|Closest:) (?P<count>[\d,]+) [\w -]+ "
    r"\((?P<nodes>\d+) nodes? x (?P<on>\d+)\)"
)
TAKES = re.compile(
    r"^(?P<time>[\d.]+) (?:ms|s|min|h|days) \[[\d.,-]+\], "
    r"[\d.,]+ (?:emulated )?(?:GPU|core)-[hs]"
)


@pytest.fixture
def runs(here: Path) -> Path:
    five_runs(here)
    return here


def first_lines(text: str) -> list[str]:
    return text.partition("\n\n")[0].splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, pytest.param(100, marks=pytest.mark.repetition)])
@pytest.mark.parametrize("output", OUTPUTS)
def test_they_say_what_it_costs_how_sure_it_is_why_and_what_next(
    runs: Path,
    scalelab: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    width: int,
) -> None:
    monkeypatch.setattr("scalelab.cli.recommend_command.width", lambda: width)
    ended = scalelab("recommend", *OUTPUTS[output])
    assert ended.err == ""
    assert ended.code == (4 if output == "nothing" else 0)
    lines = first_lines(ended.out)
    assert max(map(len, lines)) <= width
    head = lines[:11]  # with a table of ten rows a screen of 24

    (found,) = filter(None, map(ALLOCATION.match, head))
    count = int(found["count"].replace(",", ""))
    assert count == int(found["nodes"]) * int(found["on"])
    assert re.search(rf"^ *>{count} ", ended.out, re.MULTILINE), "the marked row"
    assert any(map(TAKES.match, head)), "time with its interval, and device time"
    (why,) = (line for line in head if line.startswith("Why "))
    assert re.match(rf"Why {count:,} [\w ]+ and not [\d,]+: ", why)
    states = [line.partition(":")[0] for line in head]
    assert {"Contradicted", "Open", "Confirmed"} & {*states}
    assert any(line.startswith("Next: ") for line in head)
    if output == "nothing":
        assert head[0].startswith("Nothing meets < 20 min. Shortest deadline at 90%: ")
        assert "Chance of meeting < 20 min" in " ".join(head)
    if output == "doubted":
        assert any(re.match(r"Contradicted: 16 GPUs were", line) for line in head)


def command(text: str) -> list[str]:
    """Return the words of the command that an answer names next; empty: none."""
    said = text[text.index("\nNext: ") + 7 :].partition("\n\n")[0]
    if not said.startswith("scalelab "):
        return []
    lines = []
    for line in said.splitlines():
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            break
    whole = " ".join(lines).partition(" (")[0]
    return shlex.split(whole)[1:]


@pytest.mark.slow
def test_the_limit_that_it_names_next_can_be_met(
    runs: Path, scalelab: Callable[..., Any]
) -> None:
    first = scalelab("recommend", *OUTPUTS["nothing"])
    again = scalelab(*command(first.out))
    assert again.code == 0, again
    assert again.out.startswith("Use 32 A100 ")


@pytest.mark.slow
def test_a_row_that_is_added_settles_a_doubt(
    runs: Path, scalelab: Callable[..., Any]
) -> None:
    first = scalelab("recommend", *OUTPUTS["doubted"])
    words = command(first.out)
    assert words == ["import", "doubted.csv", "runs/doubted-2"]
    assert "of 16 GPUs (2x8), local batch 128" in " ".join(first.out.split())
    table = runs / "doubted.csv"
    table.write_text(
        table.read_text().replace("16,2,A100,128,1110", f"16,2,A100,128,{PICTURES[16]}")
    )
    assert scalelab(*words).code == 0
    settled = scalelab("recommend", "runs/doubted-2", *JOB)
    assert "Contradicted" not in settled.out


SMALL = """\
name: small
workload: {name: emulated, sample_time_s: 4.0e-3, fixed_time_s: 10.0e-3}
job: {samples: 20000}
measure: {long_trial: none, warmup_steps: 1, steps: 5, repeats: 1}
gpus: [1, 2]
local_batch_size: 8
site: {device_type: cpu, nodes: 2, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_trial_that_it_names_next_can_be_run(
    here: Path, scalelab: Callable[..., Any]
) -> None:
    Path("small.yaml").write_text(SMALL)
    first = scalelab("sweep", "small.yaml", "--quiet")
    assert first.code == 0, first
    words = command(first.out)
    trial = load("runs/small").recommend().next_trial
    assert trial is not None
    assert words[:3] == ["sweep", "small.yaml", "--trial"]
    assert f"gpus={trial.world_size},nodes=" in words[3]
    again = scalelab(*words, "--quiet")
    assert again.code == 0, again
    frame = load("runs/small").observations
    assert len(frame) == 3
    (new,) = frame[frame["world_size"] == trial.world_size].to_dict("records")[-1:]
    assert new["local_batch_size"] == trial.batch.local_batch_size
    assert new["outcome"] == "completed"
