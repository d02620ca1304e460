"""Counts the ranks that a command has started by itself, by what each of them is told.

``torchrun``, and what builds on it such as ``accelerate launch``, tells every rank that
it starts ``LOCAL_RANK`` and ``WORLD_SIZE``; so do Lightning and DeepSpeed. Processes
that a rank starts inherit both.
"""

from __future__ import annotations

from collections.abc import Iterable

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.inputs.numerals import counted
from scalelab.launch.process_tree import children, descendants, environment_of

_RANK, _SIZE = "LOCAL_RANK", "WORLD_SIZE"


def check_rank_count(trial: Trial, pids: Iterable[int]) -> None:
    """Refuse a command whose ranks are told of another number of ranks.

    Nothing is refused where no rank is told a number. With a layout there may also be
    one rank for each replica, which then drives several devices.
    """
    expected = {trial.world_size}
    if trial.layout is not None:
        expected.add(trial.data_parallel_size)
    programs = [program for pid in pids for program in children(pid)]
    told = {size for program in programs for size in _told_below(program)}
    for size in sorted(told - expected):
        raise SpecError(
            f"the command started {counted(size, 'rank')} (WORLD_SIZE={size}), and "
            f"this trial has {counted(trial.world_size, 'device')}, so its row would "
            "tell of devices that were not used, or were shared. Let the command start "
            "a rank for each device: torchrun --nnodes {num_nodes} --nproc-per-node "
            "{gpus_per_node}, or accelerate launch --num_processes {world_size}."
        )


def _told_below(pid: int) -> set[int]:
    """Return the numbers that ranks below a program are told, and it is not."""
    given = environment_of(pid).get(_SIZE)
    told = {
        found[_SIZE]
        for found in map(environment_of, descendants(pid))
        if _RANK in found and found.get(_SIZE, given) != given
    }
    return {int(size) for size in told if size.isdecimal()}
