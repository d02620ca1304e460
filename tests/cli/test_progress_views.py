import io
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rich.console import Console
from sentences import Golden

from scalelab.cli import progress as module
from scalelab.cli.progress import LineView, LiveView, Tracker, problem, view
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.numerals import DeviceWords
from scalelab.inputs.outcome import Outcome
from scalelab.plan.inquiry import Inquiry, NextProbe, Purpose
from scalelab.records.control.events import (
    NodeLost,
    NodeSilent,
    NodeUp,
    Progress,
    Resumed,
    Stopping,
    TrialEnded,
    TrialStarted,
    Waiting,
)

CORES = DeviceWords("CPU slot", "core-h")

TRIAL = Trial(
    kind=TrialKind.THROUGHPUT,
    workload="digits_mlp",
    allocation=Allocation(devices_per_node=(2,)),
    local_batch_size=8,
)
NODE = "node-\N{SNOWMAN}"
NODE_UP = NodeUp(node=NODE, host="h", num_devices=1)


@dataclass
class Source:
    total: int | None
    remaining: int | None
    inquiry: Inquiry | None = None


def standing(
    done: int,
    *,
    running: int = 1,
    failed: int = 0,
    waiting: int = 3,
    out_of_memory: int = 0,
) -> Progress:
    return Progress(
        num_done=done,
        num_failed=failed,
        num_running=running,
        num_waiting=waiting,
        used_gpu_s=36.0,
        num_devices=2,
        num_out_of_memory=out_of_memory,
    )


def started(done: int, **counts: int) -> TrialStarted:
    return TrialStarted(
        trial_id=TRIAL.trial_id,
        attempt=1,
        title=str(TRIAL),
        directory="",
        progress=standing(done, **counts),
    )


def ended(done: int, outcome: str = "completed", **counts: Any) -> TrialEnded:
    return TrialEnded(
        trial_id=TRIAL.trial_id,
        attempt=1,
        title=str(TRIAL),
        program=None,
        outcome=Outcome(outcome),
        reason=counts.pop("reason", ""),
        input_error=None,
        log=None,
        runs_again=counts.pop("runs_again", False),
        samples_per_s=counts.pop("samples_per_s", None),
        progress=standing(done, **counts),
    )


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_the_end_is_expected_at_the_pace_of_this_sweep(
    clock: Clock, golden: Golden
) -> None:
    tracker = Tracker(CORES)
    assert tracker.counts() == "starting nodes"
    tracker.source = Source(total=12, remaining=8)
    assert tracker.counts() == "starting trials"
    tracker.take(started(4, running=2))
    assert tracker.counts() == "4/12 done, 2 running, 0.010 core-h"
    clock.now_s += 10
    tracker.take(ended(6))
    assert tracker.counts().endswith("about 30 s left")
    clock.now_s += 5
    assert tracker.counts().endswith("about 25 s left")
    clock.now_s += 60
    assert "left" not in tracker.counts()  # a long trial takes longer than others
    tracker.take(ended(12, running=0, failed=1))
    golden(tracker.counts())


def test_no_end_is_expected_of_a_sweep_that_stops(clock: Clock) -> None:
    tracker = Tracker(CORES)
    tracker.source = Source(total=12, remaining=12)
    tracker.take(started(0))
    tracker.take(Stopping(reason="you asked", num_running=2))
    clock.now_s += 10
    tracker.take(ended(1))
    assert tracker.counts() == "1/12 done, 1 running, 0.010 core-h"


def test_no_end_is_expected_while_nothing_can_run(clock: Clock) -> None:
    tracker = Tracker(CORES)
    tracker.source = Source(total=12, remaining=12)
    tracker.take(started(0))
    clock.now_s += 10
    tracker.take(ended(2))
    assert tracker.counts().endswith("about 50 s left")
    tracker.take(ended(2, "node_fail", runs_again=True, running=0))
    assert "left" not in tracker.counts()
    tracker.take(Waiting(reason="6 trials for 1 node x 1 device: 0 nodes up."))
    assert "left" not in tracker.counts()
    tracker.take(started(2))
    assert tracker.counts().endswith("about 50 s left")


def test_trials_that_are_no_longer_asked_for_do_not_count(clock: Clock) -> None:
    tracker = Tracker(CORES)
    tracker.source = Source(total=3, remaining=2)
    tracker.take(Resumed(num_finished=9))
    tracker.take(started(9))
    assert tracker.counts().startswith("1/3 done")
    tracker.take(ended(11))
    assert tracker.counts().startswith("3/3 done")


def test_an_unknown_total_is_counted_once_it_is_known(clock: Clock) -> None:
    tracker, source = Tracker(CORES), Source(total=None, remaining=None)
    tracker.source = source
    tracker.take(started(2))
    assert tracker.counts() == "2 done, 1 running, 0.010 core-h"
    source.total, source.remaining = 10, 6
    tracker.take(ended(4))
    assert tracker.counts().startswith("4/10 done")
    source.total = None  # counted once
    tracker.take(ended(5))
    assert tracker.counts().startswith("5/10 done")


def test_trials_that_did_not_fit_are_counted(golden: Golden) -> None:
    tracker = Tracker(CORES)
    tracker.source = Source(total=9, remaining=5)
    tracker.take(started(4, failed=1, out_of_memory=2))
    golden(tracker.counts())


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ended(1), None),
        (ended(1, "out_of_memory"), None),
        (started(1), None),
        (NODE_UP, None),
        (Resumed(num_finished=3), None),
        (
            ended(1, "failed", reason="ValueError: no."),
            f"Trial {TRIAL}: failed. ValueError: no.",
        ),
        (
            ended(1, "node_fail", runs_again=True),
            f"Trial {TRIAL}: node_fail; it runs again.",
        ),
        (
            NodeLost(node=NODE),
            "Node node-\N{SNOWMAN} was lost; its trials run again.",
        ),
        (Waiting(reason="no node is up."), "Waiting: no node is up."),
        (
            NodeSilent(node="n", silent_s=61.2, lost_after_s=120),
            "Waiting: Node n has not answered for 61 s. It counts as lost after 120 s.",
        ),
        (
            Stopping(reason="you asked", num_running=2),
            "Stopping: you asked; 2 trials still running "
            "(Ctrl-C, or scalelab stop --now, ends them).",
        ),
        (
            Stopping(reason="you asked", num_running=0),
            "Stopping: you asked; 0 trials still running.",
        ),
    ],
)
def test_problems_are_said(event: Any, text: str | None) -> None:
    assert problem(event) == text


def terminal(width: int, **options: Any) -> Console:
    options = {"force_terminal": True, "color_system": None, **options}
    return Console(file=io.StringIO(), width=width, **options)


def shown(console: Console, live: LiveView) -> list[str]:
    """Return the block as it would be drawn now."""
    with console.capture() as capture:
        console.print(live._render())
    return capture.get().splitlines()


def test_what_was_waited_for_is_forgotten_once_it_came(golden: Golden) -> None:
    console = terminal(80)
    live = LiveView(console, CORES)
    live(Waiting(reason="two nodes in the queue."))
    golden(shown(console, live)[-1])
    live(NODE_UP)
    assert "Waiting" not in shown(console, live)[-1]
    live(Waiting(reason="one node in the queue."))
    golden(shown(console, live)[-1])
    live(started(1, waiting=2))
    live(ended(2, waiting=0))
    assert "Waiting" not in shown(console, live)[-1]
    live(ended(3, "failed", reason="no"))
    live(NODE_UP)
    assert shown(console, live)[-1].startswith("Trial ")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_the_live_block_fits_its_terminal(width: int) -> None:
    console = terminal(width)
    live = LiveView(console, CORES)
    live.watch(Source(total=12_000, remaining=11_000))
    live(started(1_000, running=2, failed=1))
    long = "\N{SNOWMAN} not\n\x1b[31mfound [bold]/data/" + "x" * 500
    live(ended(1_001, "failed", reason=long, failed=2))
    lines = shown(console, live)
    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    bar = lines[0].partition("1,001/12,000 done")[0]
    assert len(bar) >= 5 if width >= 80 else bar == ""
    assert "1,001/12,000 done" in lines[0]
    assert "\x1b" not in "".join(lines)
    assert lines[-1].startswith("Trial ")
    assert lines[-1].rstrip().endswith("\N{HORIZONTAL ELLIPSIS}")


def test_the_fastest_trial_so_far_is_named(golden: Golden) -> None:
    console = terminal(80)
    live = LiveView(console, CORES)
    for done, rate in enumerate((None, 900.0, 12_340.0, 11_000.0)):
        live(ended(done, samples_per_s=rate))
    counts, fastest = shown(console, live)
    assert "3 done" in counts
    golden(fastest.rstrip())


def test_a_bar_without_colours_is_drawn_in_letters() -> None:
    console = terminal(80, no_color=True)
    live = LiveView(console, CORES)
    live.watch(Source(total=4, remaining=3))
    live(started(1))
    assert re.match(r"#{5,6}\.{15,18} 1/4 done", shown(console, live)[0])


def test_device_time_keeps_its_unit() -> None:
    tracker = Tracker(CORES)
    said = []
    for used_gpu_s in (0.0, 4.0, 34.8, 36.0, 3600.0):
        progress = replace(standing(1), used_gpu_s=used_gpu_s)
        tracker.take(replace(started(1), progress=progress))
        said.append(tracker.counts().rpartition(", ")[2])
    assert said == [
        "0.0000 core-h",
        "0.0011 core-h",
        "0.0097 core-h",
        "0.010 core-h",
        "1 core-h",
    ]


@pytest.mark.parametrize("word", ["core-h", "emulated GPU-h"])
def test_the_counts_take_one_line_of_a_usual_terminal(clock: Clock, word: str) -> None:
    console = terminal(80)
    live = LiveView(console, DeviceWords("device", word))
    live.watch(Source(total=120, remaining=120))
    for done in range(0, 120, 20):
        clock.now_s += 700
        live(ended(done, running=16, failed=done // 10))
        (line,) = shown(console, live)
        assert len(line) <= 80
        assert line.endswith(" left") or done == 0


def test_the_live_block_leaves_one_line_behind() -> None:
    console = terminal(100)
    assert isinstance(console.file, io.StringIO)
    with LiveView(console, CORES) as live:
        live.announce("Running [2] trials :snowman: into /a/very/long/path" + "x" * 90)
        live.watch(Source(total=2, remaining=2))
        live(started(0))
        live(ended(2, running=0))
    text = console.file.getvalue()
    assert "Running [2] trials :snowman: into\n/a/very/long/path" + "x" * 90 in text
    assert text.endswith("2/2 done, 0 running, 0.010 core-h\n")


def test_a_live_block_that_never_began_leaves_nothing_behind() -> None:
    console = terminal(100)
    assert isinstance(console.file, io.StringIO)
    with LiveView(console, CORES):
        pass
    assert "done" not in console.file.getvalue()


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_pipe_gets_a_line_now_and_then(clock: Clock, golden: Golden) -> None:
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines.announce("Running 3 trials\x1b[1m.")
        lines.watch(Source(total=3, remaining=3))
        lines(started(0))
        lines(ended(1, "failed", failed=1, reason="no\nway"))
        clock.now_s += 11
        lines(ended(2, failed=1))
        lines(ended(3, failed=1, running=0))
    golden(*lines_of(console))


OPEN = Inquiry(
    likely=(4, 8),
    pick=4,
    surety=0.5,
    following=NextProbe(
        allocation="2x4",
        world_size=8,
        local_batch_size=64,
        num_steps=52,
        gpu_hours=0.4,
        purpose=Purpose.DECIDES,
        settles=0.6,
    ),
)


def test_what_is_open_stands_beside_the_counts(clock: Clock, golden: Golden) -> None:
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines.watch(Source(total=None, remaining=None, inquiry=OPEN))
        lines(started(0))
        clock.now_s += 11
        lines(ended(1, running=0))
    golden(lines_of(console)[-1])


def test_the_live_block_has_a_line_for_what_is_open(golden: Golden) -> None:
    console = terminal(120)
    live = LiveView(console, CORES)
    live.watch(Source(total=None, remaining=None, inquiry=OPEN))
    with console.capture() as shown:
        console.print(live._render())
    assert "CPU slots" not in shown.get(), "nothing is known before a trial has started"
    live(started(0))
    with console.capture() as shown:
        console.print(live._render())
    golden(shown.get())


def test_the_moment_between_two_trials_is_not_shown(clock: Clock) -> None:
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines(started(0))
        clock.now_s += 11
        lines(ended(1, running=0, waiting=2))
        lines(started(1))
        clock.now_s += 300
    assert lines_of(console)[0] == "1 done, 1 running, 0.010 core-h"


def test_nothing_is_said_twice(clock: Clock) -> None:
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=False) as lines:
        lines(ended(1))
        clock.now_s += 11
        lines(ended(1))
    assert lines_of(console) == ["1 done, 1 running, 0.010 core-h"]


def test_quiet_shows_problems_only(clock: Clock) -> None:
    console = Console(file=io.StringIO())
    with LineView(console, CORES, is_quiet=True) as lines:
        lines.announce("Running 3 trials.")
        lines(ended(1, "failed", reason="no"))
        clock.now_s += 11
        lines(ended(2))
    assert lines_of(console) == [f"Trial {TRIAL}: failed. no"]


def fail_in(shower: LiveView | LineView) -> None:
    with shower:
        shower(started(1))
        raise ZeroDivisionError


def test_an_error_is_not_preceded_by_counts() -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(ZeroDivisionError):
        fail_in(LineView(console, CORES, is_quiet=False))
    assert lines_of(console) == []
    console = terminal(80)
    with pytest.raises(ZeroDivisionError):
        fail_in(LiveView(console, CORES))
    assert "done" not in lines_of(console)[-1]


@pytest.mark.parametrize(
    ("is_terminal", "named", "is_quiet", "kind"),
    [
        (True, "xterm-256color", False, LiveView),
        (True, "xterm-256color", True, LineView),
        (True, "dumb", False, LineView),
        (False, "xterm-256color", False, LineView),
    ],
)
def test_the_view_suits_stderr(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    named: str,
    is_quiet: bool,
    kind: type[Any],
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("sys.stderr", file)
    monkeypatch.setenv("TERM", named)
    assert isinstance(view(CORES, is_quiet=is_quiet), kind)


def test_time_is_real() -> None:
    tracker = Tracker(CORES)
    tracker.source = Source(total=2, remaining=2)
    tracker.take(started(0))
    time.sleep(1.0)
    tracker.take(ended(1))
    assert "left" in tracker.counts()
