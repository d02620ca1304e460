"""Reads what a command reports while it runs; ends it when it has measured enough.

While no step comes, it says once what it sees instead.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import yaml

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.outcome import Outcome
from scalelab.inputs.plain_files import log_tail
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.probe.steps import ProbedSteps
from scalelab.launch.command.results import (
    completed,
    refused,
    result_at_exit,
    result_while_running,
)
from scalelab.launch.command.sight import num_at_store, sight_of
from scalelab.launch.command.steps import CONFIRM_AFTER_STEPS, StepLog
from scalelab.launch.process_tree import has_loaded
from scalelab.launch.progress import ProgressBoard, StreamWriter
from scalelab.launch.rendezvous import Meeting
from scalelab.launch.supervision import Supervisor, Watch
from scalelab.launch.timing import Limits
from scalelab.launch.verdict import fewest_steps, last_lines
from scalelab.plan.first_check import LOG, NOT_WITNESSED, ONE_PROCESS, RATE_DISAGREES
from scalelab.reading.logs.files import EventFiles, FileWatch, FollowedFile
from scalelab.reading.logs.lines import Report, ReportReader
from scalelab.reading.logs.match import metrics_for
from scalelab.records.attempt import AttemptResult, write_atomically

MANY_LINES = 100
PATIENCE_S = 60.0
_LOOK_EVERY_S = 5.0
_READ_BYTES = 1 << 18


class FirstMinute:
    """Looks at a command while no step comes, and writes a notice once.

    The notice is written after many lines, a minute after the first line that might be
    of a step, or a minute after the start where no rank has come to the store. The
    attempt goes on.
    """

    def __init__(self, attempt: CommandAttempt, meeting: Meeting) -> None:
        self._attempt, self._meeting = attempt, meeting
        self._began_s = time.monotonic()
        self._next_look_s = self._began_s + _LOOK_EVERY_S
        self._readable_s = math.inf
        self._is_told = False
        self.no_rank_came = ""  # in a sentence; empty where one did, or may not

    def look(self, pids: Sequence[int], nothing_seen: Callable[[], str]) -> None:
        """Look again if it is time to; ``nothing_seen`` says that no step was."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_EVERY_S
        if now_s - self._began_s >= PATIENCE_S:
            self.no_rank_came = self._without_ranks(pids)
        if self._is_told:
            return

        files = self._attempt.spec.files
        lines = log_tail(files.log(0), num_bytes=_READ_BYTES).encode()
        if metrics := metrics_for(lines):
            self._readable_s = min(self._readable_s, now_s)

        has_waited = now_s - self._readable_s >= PATIENCE_S
        has_waited |= lines.count(b"\n") >= MANY_LINES
        if not (has_waited or self.no_rank_came):
            return

        self._is_told = True
        found = [f"No step after {duration(round(now_s - self._began_s))}"]
        found.append(self.no_rank_came or nothing_seen())
        if metrics:
            # As a line of YAML, which can be copied.
            line = yaml.safe_dump(metrics, default_flow_style=True, width=_READ_BYTES)
            found.append(f"These lines are read by {line.strip()[1:-1]}")
        text = ". ".join(found).encode()
        write_atomically(files.notice, text, below=files.run, durable=False)

    def _without_ranks(self, pids: Sequence[int]) -> str:
        num_ranks = self._attempt.spec.trial.world_size
        is_awaited = self._attempt.launcher.serves_store and num_ranks > 1
        if not is_awaited or num_at_store(self._meeting, pids):
            return ""
        return (
            f"None of {counted(num_ranks, 'rank')} is connected with the store at "
            "MASTER_ADDR:MASTER_PORT, where they meet. If the script sets these "
            "variables, or TORCHELASTIC_USE_AGENT_STORE, let it leave them as it finds "
            "them; or it has not called init_process_group yet"
        )


# Lines that arrive within this time are read together: waking up for each line would
# take processor time from the ranks.
_READ_INTERVAL_S = 0.01

# Output counts as a sign of life before the first step, for so many times the seconds
# that may pass without a report.
_TALK_FACTOR = 3
_MOST_NAMES = 10
_FRAMEWORK = "framework"
# The metric by which a program says how many ranks, or devices, work together.
SAID = "world_size"

# A program may connect its ranks in its first step, or leave its group and then report
# all at once: only one that goes on without a connection between its ranks is refused.
_LOOKS = 2
_BETWEEN_LOOKS_S = 0.5
# Libraries of frameworks by which one process drives all devices.
_DRIVE_ALL = ("jaxlib/", "tensorflow/")


class RankWitness:
    """Finds out once, while a command trains, whether its ranks have met.

    Ranks that train alone report the steps of a trial that scales perfectly. So the
    connections between their processes are looked at when the first step is reported.
    """

    def __init__(self, attempt: CommandAttempt, meeting: Meeting) -> None:
        self._attempt, self._meeting = attempt, meeting
        self._num_devices = attempt.spec.trial.world_size
        self._may_be_one_process = (
            attempt.launcher.only_one_node is not None  # it starts one process
            and attempt.spec.device_type == "cpu"
            and attempt.spec.trial.layout is None
        )
        self._witness: str | None = None
        self._looks_left = _LOOKS
        self._num_alone = 0
        self._next_look_s = 0.0
        self._seen_step: int | None = None

    def hear(self, metrics: Mapping[str, float]) -> None:
        """Take in what the program says of its world, if it does."""
        if SAID not in metrics:
            return
        if metrics[SAID] not in (
            self._num_devices,
            self._attempt.spec.trial.data_parallel_size,
        ):
            raise SpecError(
                f"the program reports {SAID}={metrics[SAID]:g}, and this trial has "
                f"{counted(self._num_devices, 'device')}: its row would tell of "
                "devices that do not work together. Let the program use all of them, "
                f"or ask for gpus: [{metrics[SAID]:g}].",
                code="other_world_size",
            )

        if self._num_devices > 1 and self._witness is None:
            self._witness = _FRAMEWORK

    def look(
        self, pids: Sequence[int], step: int, *, num_stepping: int, is_last: bool
    ) -> None:
        """Look at the processes of a command that has reported a step.

        All ranks are there then, and later steps are hardly disturbed. The optimizers
        of PyTorch were seen to step in ``num_stepping`` processes.
        """
        if self._may_be_one_process and self._seen_step is None:
            is_driver = any(
                has_loaded(pid, library) for pid in pids for library in _DRIVE_ALL
            )
            self._may_be_one_process = not is_driver and num_stepping < 2

        if self._num_devices == 1 or self._witness is not None:
            self._seen_step = step
            return

        # Ranks may exchange nothing before a step has ended.
        is_later = step != self._seen_step and time.monotonic() >= self._next_look_s
        if not (is_last or (self._looks_left > 0 and is_later)):
            return

        sight = sight_of(self._attempt, self._meeting, pids)
        if sight is None:
            return

        self._looks_left -= 1
        self._next_look_s = time.monotonic() + _BETWEEN_LOOKS_S
        self._seen_step, self._witness = step, sight.witness
        self._may_be_one_process &= sight.num_met < 2

        if sight.witness is None and (sight.is_sure or self._may_be_one_process):
            self._num_alone += 1
            if self._num_alone == _LOOKS:
                raise SpecError(self._alone(sight.num_met), code="ranks_alone")

    def columns(self) -> dict[str, str]:
        """Return what has shown that the ranks met, by column."""
        if self._num_devices == 1:
            return {"ranks_witness": ONE_PROCESS} if self._may_be_one_process else {}
        if self._num_alone and self._may_be_one_process:
            raise SpecError(self._alone(1), code="ranks_alone")
        return {"ranks_witness": self._witness or NOT_WITNESSED}

    def _alone(self, num_met: int) -> str:
        size = self._num_devices
        if self._may_be_one_process:
            return (
                f"one process runs, which nothing joins to others, and this trial has "
                f"{counted(size, 'CPU slot')}: its row would call the work of one that "
                f"of {size}. Ask for gpus: [1]; or let the script join ranks, and "
                "write launcher: torchrun; or, if it uses all slots by itself, let it "
                f"print world_size={size}, and read that under metrics."
            )

        found = (
            "none met another: this script trains alone in each"
            if num_met < 2
            else f"only {num_met} of them met: the script trains alone in the others"
        )
        return (
            f"{counted(size, 'rank')} started, {found}, and what each does would count "
            "as a share of one training. When the first step is reported, all ranks "
            "must have joined one process group and be connected. Call "
            "torch.distributed.init_process_group, or what your framework has for it; "
            "a script for one process takes gpus: [1] and launcher: none."
        )


def watch_of(attempt: CommandAttempt, meeting: Meeting, board: ProgressBoard) -> Watch:
    """Return the watch of a node's processes; only node 0 reads what they report."""
    if attempt.node_rank > 0:
        return Watch(board, attempt.program)
    return _CommandWatch(attempt, meeting, board)


class _CommandWatch(Watch):
    """Reads the reports of rank 0 and ends the command when it has measured enough.

    Every report counts for all ranks, which keep step.
    """

    def __init__(
        self, attempt: CommandAttempt, meeting: Meeting, board: ProgressBoard
    ) -> None:
        super().__init__(board, attempt.program)
        self._spec = spec = attempt.spec
        program, ranks = attempt.program, attempt.ranks
        source, trial = program.metrics, spec.trial
        self._reader = ReportReader(
            source,
            trial.gradient_accumulation_steps,
            trial.global_batch_size,
            trial.data_parallel_size,
        )

        self._reporters = [board.reporter(row) for row in range(len(ranks))]
        self._logs = [spec.files.log(rank) for rank in ranks]
        self._awaited = {0} if attempt.launcher.ends_with_rank_0 else set(ranks)
        path = attempt.metrics_path or spec.files.log(0)
        within = spec.files.directory
        self._file: FollowedFile | EventFiles

        if source.tensorboard is not None:
            self._file = EventFiles(path, within=within)
            self._watch = FileWatch(self._logs, [path, spec.files.probe])
        else:
            self._file = FollowedFile(
                path, is_table=source.csv is not None, within=within
            )
            self._watch = FileWatch([path, *self._logs], [spec.files.probe])

        self._probed = ProbedSteps(
            spec.files.probe,
            trial,
            num_processes=len(ranks),
            tokens_per_sample=program.tokens_per_sample,
        )

        self._printed = StepLog(
            trial,
            may_repeat=source.jsonl is None,
            num_reporters=spec.placement.world_size
            if attempt.launcher.shares_reports
            else 1,
            names_evaluations=bool(source.evaluation),
            tokens_per_sample=program.tokens_per_sample,
        )

        self._stream = StreamWriter(spec.files.stream)
        self._foreign_library = attempt.launcher.foreign_library
        self._witness = RankWitness(attempt, meeting)
        self._first_minute = FirstMinute(attempt, meeting)
        self._talks_until_s = time.monotonic() + (
            _TALK_FACTOR * Limits.of(spec).start_up_s
        )
        self._has_ended = False
        self._misread: SpecError | None = None  # what the program prints of its steps
        self._is_confirmed = False

    @property
    def _log(self) -> StepLog:
        return self._probed.log or self._printed

    @property
    def ready_s(self) -> float | None:
        return self._log.ready_s

    def attach(self, supervisor: Supervisor) -> None:
        supervisor.listen(self._watch.descriptor, partial(self._on_change, supervisor))

    def look(self, pids: Sequence[int]) -> None:
        if self._log.last_step is None and not self._probed.num_steps:
            self._first_minute.look(pids, self._nothing_seen)

    def conclude(self, rank: int) -> AttemptResult | None:
        self._awaited.discard(rank)
        if self._awaited:
            return None

        result = self._read(is_over=True)
        if result is None:
            result = result_at_exit(self._log, self._spec.trial, self._nothing_seen())
            if result.outcome is Outcome.FAILED:
                result = replace(result, log=self._logs[0].name)

        return self._witnessed(result)

    def pruned(self, reason: str) -> AttemptResult:
        measured = completed(self._log, self._spec.trial)
        return self._witnessed(replace(measured, outcome=Outcome.PRUNED, reason=reason))

    def explained(self, result: AttemptResult) -> AttemptResult:
        if result.outcome not in (Outcome.STALLED, Outcome.TIMED_OUT):
            return result
        has_stepped = self._log.last_step is not None
        came = self._first_minute.no_rank_came
        cause = self._probed.fewer_batches() if has_stepped else came
        if cause and result.outcome is Outcome.STALLED:  # it is the user's to correct
            reason = f"{result.reason}. {cause}."
            return replace(
                result, outcome=Outcome.REFUSED, reason=reason, input_error=reason
            )
        if has_stepped:
            return result
        return replace(result, reason=f"{result.reason}. {self._nothing_seen()}")

    def close(self) -> None:
        with closing(self._watch), closing(self._file), closing(self._stream):
            for row in self._log.rows(is_over=True):
                self._stream.append(row)

    def _on_change(self, supervisor: Supervisor) -> None:
        woken_s = time.monotonic()
        changed = self._watch.changed()
        if self._has_ended:
            return

        result = self._refused_library(supervisor.pids)
        if result is None and {self._file.path, self._probed.folder} & changed:
            result = self._read(has_probed=self._probed.folder in changed)

        if self._log.last_step is not None:
            # All ranks are there now, and later steps are not disturbed.
            pids, step = supervisor.pids, self._log.last_step
            try:
                self._witness.look(
                    pids,
                    step,
                    num_stepping=self._probed.num_stepping,
                    is_last=result is not None,
                )
            except SpecError as error:
                result = refused(error)

        if result is not None:
            self._has_ended = True
            supervisor.end(self._witnessed(result))
            return

        if changed & set(self._logs):
            if self._log.last_step is not None:
                self._show(self._log.last_step)
            elif time.monotonic() < self._talks_until_s:
                self._show(0)

        time.sleep(max(0.0, woken_s + _READ_INTERVAL_S - time.monotonic()))

    def _refused_library(self, pids: Sequence[int]) -> AttemptResult | None:
        library = self._foreign_library
        if library is None:
            return None
        if self._log.last_step is not None:  # a last time
            self._foreign_library = None
        is_loaded = any(has_loaded(pid, library.prefix) for pid in pids)
        return (
            refused(SpecError(library.reason, code="unknown_library"))
            if is_loaded
            else None
        )

    def _witnessed(self, result: AttemptResult) -> AttemptResult:
        if not result.outcome.is_measurement:
            return result
        try:
            seen = self._confirmed(result.measurements)
            # of the samples that were seen now
            columns = {**completed(self._log, self._spec.trial).measurements, **seen}
            if columns.get("ranks_witness") is None:
                columns |= self._witness.columns()
        except SpecError as error:
            return refused(error)

        return replace(result, measurements=columns)

    def _confirmed(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the probe, or else the log, confirms of the steps, by column."""
        if self._probed.log is None:
            return {
                "measured_by": LOG,
                "samples_witness": columns.get("samples_witness", NOT_WITNESSED),
            }

        seen = self._probed.columns()
        marks = [*columns.get("validity", ()), *seen.get("validity", ())]
        if "samples_witness" not in seen:
            seen["samples_witness"] = columns.get("samples_witness", NOT_WITNESSED)
        elif RATE_DISAGREES in marks:  # then the program's own rate is another's
            marks.remove(RATE_DISAGREES)

        if "reported_step_time_s" not in columns and self._misread is None:
            # Both are of the same steps, also where the warm-up was doubled.
            self._printed.intervals.warmup_steps = self._log.intervals.warmup_steps
            self._printed.samples_per_step = self._log.samples_per_step
            counted = self._printed.step_columns()
            if counted["num_steps"] >= fewest_steps(self._spec.trial):
                seen["reported_step_time_s"] = counted.get("step_time_s")

        return {**seen, "validity": marks}

    def _read(
        self, *, has_probed: bool = False, is_over: bool = False
    ) -> AttemptResult | None:
        now_s, num_seen = time.monotonic(), self._probed.num_steps
        try:
            reports = self._reports(list(self._file.lines()), now_s)
            self._probed.take(reports, now_s, has_changed=has_probed, is_over=is_over)

            num_probed = self._probed.num_steps
            if num_probed and self._probed.log is None:  # its steps will count
                self._show(num_probed)
                return None
            if self._misread is not None and self._probed.log is None:
                raise self._misread

            is_read = bool(reports) or self._file.path == self._logs[0]
            if (
                not is_read
                and self._log.last_step is None
                and self._file.num_lines >= MANY_LINES
            ):
                raise SpecError(self._nothing_seen(), code="nothing_reported")

            self._confirm_once()
        except SpecError as error:
            return refused(error)
        except OSError as error:
            return refused(
                SpecError(
                    f"{error.filename} cannot be read: {error.strerror}. Write metrics "
                    "to a regular file.",
                    code="unreadable",
                )
            )

        if not reports and num_probed == num_seen:
            return None

        for row in self._log.rows():
            self._stream.append(row)

        if self._log.last_step is not None:
            self._show(self._log.last_step)

        return result_while_running(self._log, self._spec.trial, now_s)

    def _confirm_once(self) -> None:
        if not self._is_confirmed and self._log.num_seen >= CONFIRM_AFTER_STEPS:
            self._is_confirmed = True
            self._confirmed({})

    def _reports(self, lines: Iterable[bytes], now_s: float) -> list[Report]:
        """Return what lines report; what is wrong with the steps they count is kept."""
        reports = []
        for line in lines:
            try:
                report = self._reader.read(line)
            except SpecError as error:
                self._misread = self._misread or error
                continue
            if report is not None:
                self._witness.hear(report.metrics)
                reports.append(report)

        if self._misread is None:
            try:
                self._printed.take(reports, now_s)
            except SpecError as error:
                self._misread = error

        return reports

    def _show(self, step: int) -> None:
        for report in self._reporters:
            report(step)

    def _nothing_seen(self) -> str:
        log, path, directory = self._logs[0], self._file.path, self._spec.directory
        shown = path.relative_to(directory) if path.is_relative_to(directory) else path
        found = f"it has not written {shown}"
        if path.exists():
            found = (
                f"of {self._file.num_lines} lines in {shown} none was "
                f"{self._reader.expectation}"
            )

        names = sorted(entry.name for entry in path.parent.glob("*"))[:_MOST_NAMES]
        if names and not path.exists():
            found += f" (beside that file there is: {', '.join(names)})"

        return (
            f"The program reported no step: {found}; and no optimizer of PyTorch was "
            "seen to step. Check what the program writes against 'metrics' in the "
            f"experiment; last lines of {log.name}: {last_lines(log) or '(nothing)'}"
        )
