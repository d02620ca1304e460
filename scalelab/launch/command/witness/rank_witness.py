"""Looks for what shows that the ranks of a command are as many as asked, and meet.

Ranks of which each trains alone report the steps of a trial that scales perfectly. So
when the first step is reported, the connections between their processes are looked at.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.inputs.numerals import counted
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.witness.sight import sight_of
from scalelab.launch.process_tree import children, descendants, environment_of
from scalelab.launch.rendezvous import Meeting
from scalelab.plan.first_check import NOT_WITNESSED

_LOCAL_RANK, _SIZE = "LOCAL_RANK", "WORLD_SIZE"
_FRAMEWORK = "framework"
# The metric by which a program says how many ranks, or devices, work together.
SAID = "world_size"

# A program may connect its ranks in its first step, or leave its group and then report
# all at once: only one that goes on without a connection between its ranks is refused.
_LOOKS = 2
_BETWEEN_LOOKS_S = 0.5
_LOSS = re.compile(r"loss\W{0,4}(\d+\.\d{3,})", re.IGNORECASE)
_EQUAL_LINES = 3


class RankWitness:
    """Finds out once, while a command trains, whether its ranks have met."""

    def __init__(self, attempt: CommandAttempt, meeting: Meeting) -> None:
        trial = attempt.spec.trial
        self._attempt, self._meeting = attempt, meeting
        self._num_devices = trial.world_size
        self._sizes = {trial.world_size, trial.data_parallel_size}
        self._counts_ranks = attempt.launcher.shares_reports
        self._witness: str | None = None
        self._looks_left = _LOOKS
        self._num_alone = 0
        self._may_hide = False
        self._next_look_s = 0.0
        self._seen_step: int | None = None

    def hear(self, metrics: Mapping[str, float]) -> None:
        """Take in what the program says of its world, if it does."""
        if SAID not in metrics:
            return
        if metrics[SAID] not in self._sizes:
            raise SpecError(
                f"the program reports {SAID}={metrics[SAID]:g}, and this trial has "
                f"{counted(self._num_devices, 'device')}: its row would tell of "
                "devices that do not work together. Let the program use all of them, "
                f"or ask for gpus: [{metrics[SAID]:g}]."
            )
        if self._num_devices > 1 and self._witness is None:
            self._witness = _FRAMEWORK

    def look(self, pids: Sequence[int], step: int, *, is_last: bool) -> None:
        """Look at the processes of a command that has reported a step.

        All ranks are there then, and later steps are hardly disturbed.
        """
        if self._counts_ranks:
            self._counts_ranks = False
            _check_rank_count(self._attempt.spec.trial, pids)
        if self._num_devices == 1 or self._witness is not None:
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
        if sight.witness is None and sight.is_sure:
            self._num_alone += 1
            if self._num_alone == _LOOKS:
                raise SpecError(_unmet(self._num_devices, sight.num_met))
        self._may_hide |= not sight.is_sure

    def columns(self) -> dict[str, str]:
        """Return what has shown that the ranks met, by column; empty for one rank."""
        if self._num_devices == 1:
            return {}
        attempt = self._attempt
        has_logs = sum(map(len, attempt.device_ids)) == self._num_devices
        # Ranks that have met may all print their mean loss.
        is_open = self._witness is None and not self._may_hide
        if is_open and has_logs and not attempt.launcher.shares_reports:
            logs = [attempt.spec.files.log(rank) for rank in range(self._num_devices)]
            if equal_losses(logs):
                raise SpecError(_unmet(self._num_devices, 1))
        return {"ranks_witness": self._witness or NOT_WITNESSED}


def equal_losses(logs: Sequence[Path]) -> bool:
    """Tell whether logs of several ranks print the same losses, to all digits."""
    if len(logs) < 2 or not all(log.exists() for log in logs):
        return False
    found = [_LOSS.findall(log.read_text(errors="replace")) for log in logs]
    shortest = min(map(len, found))
    return (
        len({tuple(each[:shortest]) for each in found}) == 1
        and len(set(found[0][:shortest])) >= _EQUAL_LINES
    )


def _unmet(num_ranks: int, num_met: int) -> str:
    found = (
        "none met another: this script trains alone in each"
        if num_met < 2
        else f"only {num_met} of them met: the script trains alone in the others"
    )
    return (
        f"{counted(num_ranks, 'rank')} started, {found}, and what each does would "
        "count as a share of one training. "
        "When the first step is reported, all ranks must have joined one process group "
        "and be connected. Call torch.distributed.init_process_group, or what your "
        "framework has for it; a script for one process takes gpus: [1] and launcher: "
        "none."
    )


def _check_rank_count(trial: Trial, pids: Iterable[int]) -> None:
    """Refuse a command whose ranks are told of another number of ranks.

    ``torchrun``, and what builds on it such as ``accelerate launch``, tells every rank
    ``LOCAL_RANK`` and ``WORLD_SIZE``; so do Lightning and DeepSpeed. Processes that a
    rank starts inherit both. Nothing is refused where no rank is told a number. With a
    layout there may also be one rank for each replica, which drives several devices.
    """
    expected = {trial.world_size}
    if trial.layout is not None:
        expected.add(trial.data_parallel_size)
    told: set[str] = set()
    for program in (each for pid in pids for each in children(pid)):
        given = environment_of(program).get(_SIZE)
        told |= {
            found[_SIZE]
            for found in map(environment_of, descendants(program))
            if _LOCAL_RANK in found and found.get(_SIZE, given) != given
        }
    for size in sorted({int(each) for each in told if each.isdecimal()} - expected):
        raise SpecError(
            f"the command started {counted(size, 'rank')} (WORLD_SIZE={size}), and "
            f"this trial has {counted(trial.world_size, 'device')}, so its row would "
            "tell of devices that were not used, or were shared. Let the command start "
            "a rank for each device: torchrun --nnodes {num_nodes} --nproc-per-node "
            "{gpus_per_node}, or accelerate launch --num_processes {world_size}."
        )
