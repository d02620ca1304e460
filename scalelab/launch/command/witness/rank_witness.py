"""Looks for what shows that the ranks of a command are as many as asked, and meet.

Ranks of which each trains alone report the steps of a trial that scales perfectly. So
when the first step is reported, the connections between their processes are looked at.
"""

import time
from collections.abc import Mapping, Sequence

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.launch.command.attempt import CommandAttempt
from scalelab.launch.command.witness.sight import sight_of
from scalelab.launch.process_tree import has_loaded
from scalelab.launch.rendezvous import Meeting
from scalelab.plan.first_check import NOT_WITNESSED, ONE_PROCESS

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
    """Finds out once, while a command trains, whether its ranks have met."""

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
                f"or ask for gpus: [{metrics[SAID]:g}]."
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
                raise SpecError(self._alone(sight.num_met))

    def columns(self) -> dict[str, str]:
        """Return what has shown that the ranks met, by column."""
        if self._num_devices == 1:
            return {"ranks_witness": ONE_PROCESS} if self._may_be_one_process else {}
        if self._num_alone and self._may_be_one_process:
            raise SpecError(self._alone(1))
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
