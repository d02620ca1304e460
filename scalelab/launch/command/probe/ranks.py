"""Whether ranks train together, by their parameters, gradients and first batches."""

from collections.abc import Sequence

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.numerals import counted
from scalelab.kinds.strategies import strategy_of
from scalelab.launch.command.probe.streams import Note, ProbedProcess
from scalelab.plan.first_check import INSIDE, NOT_WITNESSED, SAME_DATA

# The notes of a rank on its optimizer, by the number of the step that came next.
_Notes = dict[int, Note]


def ranks_witness(
    trial: Trial,
    processes: Sequence[ProbedProcess],
    *,
    optimizer: int,
    loader: int,
) -> str | None:
    """Return what the probe says of the ranks; None where it cannot judge them.

    ``inside``: they train together, on samples of their own. ``same_data``: they hold
    the same parameters, and began with the same batch. ``not_witnessed``: one sign says
    that they train apart.

    Raises
    ------
    SpecError
        Each trains alone; or all see the same samples, and a target is to be reached.
    """
    if (compared := _compared(trial, processes, optimizer)) is None:
        return None
    ranks, first, last = compared
    if not _are_equal(ranks, last, "parameters"):
        if _are_equal(ranks, last, "gradients") or _may_exchange(ranks, first, last):
            return NOT_WITNESSED
        raise SpecError(
            f"{counted(len(processes), 'rank')} joined a process group, and each "
            f"trains alone: before step {last} their parameters and their gradients "
            "differ, and they have exchanged nothing since step 1. Wrap the model in "
            "torch.nn.parallel.DistributedDataParallel, or let the program average its "
            "gradients. Where it averages weights now and then, write parallelism: "
            "local_sgd."
        )

    batches = {
        process.loaders.get(loader, {}).get("first_batch") for process in processes
    }
    if None in batches:
        return None
    if len(batches) > 1:
        return INSIDE
    if trial.kind is TrialKind.THROUGHPUT:
        return SAME_DATA

    raise SpecError(
        f"all {counted(len(processes), 'rank')} began with the same batch, and before "
        f"step {last} hold the same parameters: every rank sees the same samples, and "
        "what they reach one rank would reach as soon. Give the data loader a sampler, "
        "torch.utils.data.DistributedSampler, or a seed for each rank."
    )


def check_group(trial: Trial, note: Note) -> None:
    """Refuse a process group of another size than the trial has devices.

    With a layout there may also be one rank for each replica, which drives several;
    servers may be members, too.

    Raises
    ------
    SpecError
        The group has more ranks, or fewer.
    """
    size = note.get("world_size")
    if not strategy_of(trial.parallelism).is_synchronous or size in (
        None,
        trial.world_size,
        trial.layout and trial.data_parallel_size,
    ):
        return

    raise SpecError(
        f"the program's process group has {counted(size, 'rank')}, and this trial has "
        f"{counted(trial.world_size, 'device')}, so its row would tell of devices that "
        "were not used, or were shared. Let the command start a rank for each device: "
        "torchrun --nnodes {num_nodes} --nproc-per-node {gpus_per_node}, or accelerate "
        "launch --num_processes {world_size}."
    )


def _compared(
    trial: Trial, processes: Sequence[ProbedProcess], optimizer: int
) -> tuple[list[_Notes], int, int] | None:
    """Return the notes of ranks that can be compared, before a first and a last step.

    Each must hold the whole model, which has changed since the first.
    """
    strategy = strategy_of(trial.parallelism)
    is_whole = strategy.is_synchronous and not strategy.shards_state
    if trial.layout is not None or not is_whole or len(processes) < 2:
        return None

    ranks = [
        {
            at: note
            for at, note in process.notes[optimizer].items()
            if "parameters" in note
        }
        for process in processes
    ]

    common = set.intersection(*map(set, ranks))
    if len(common) < 2 or not all(map(_is_plain, ranks)):
        return None

    first, last = min(common), max(common)
    has_changed = ranks[0][first]["parameters"] != ranks[0][last]["parameters"]
    are_alike = has_changed and _are_equal(ranks, last, "shapes")
    return (ranks, first, last) if are_alike else None


def _is_plain(rank: _Notes) -> bool:
    return not any(note["engines"] or note["is_split"] for note in rank.values())


def _are_equal(ranks: Sequence[_Notes], at: int, name: str) -> bool:
    return all(rank[at][name] == ranks[0][at][name] for rank in ranks)


def _may_exchange(ranks: Sequence[_Notes], first: int, last: int) -> bool:
    """Tell whether a collective operation was counted between two steps, or none is."""
    counts = [
        (rank[first].get("exchanges"), rank[last].get("exchanges")) for rank in ranks
    ]
    return any(None in pair or pair[0] != pair[1] for pair in counts)
