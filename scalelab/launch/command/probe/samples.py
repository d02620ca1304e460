"""The samples of a step: those that were drawn, held against those that were asked.

What the data loaders of all ranks handed out counts, and of it what entered the model.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from statistics import fmean, median
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.inputs.numerals import counted, number
from scalelab.launch.command.probe.streams import (
    Draws,
    Note,
    ProbedProcess,
    Source,
)
from scalelab.plan.first_check import (
    BATCH_SIZES,
    DOUBTED_BEYOND,
    LOADER,
    LOADERS,
    MODEL,
    PASSES,
    UNEXPLAINED,
    WRONG_BEYOND,
    factor,
)

_FEWEST_STEPS = 5
# So many steps show that a part of each batch enters the model, always the same one.
_FEWEST_LOOKS = 4
_EQUAL = 1e-6


def samples_columns(
    trial: Trial,
    drawn: Iterable[Sequence[Draws]],
    *,
    scale: float,
    skipped: float,
    num_loaders: int,
    entered: float,
) -> dict[str, Any]:
    """Return the samples of a step and their witness, by column; empty if not known.

    Parameters
    ----------
    drawn
        For each process that steps, what it drew for each of its steps.
    scale
        Ranks over those that are seen, where each draws batches of its own.
    skipped
        Steps that a scaler of gradients skipped, for each step that was made.
    num_loaders
        Loaders from which the training draws.
    entered
        The share of the samples that entered the model.

    Raises
    ------
    SpecError
        Another number of samples is drawn than the trial asks for, and no reason for
        that was seen.
    """
    drawing = [steps for steps in drawn if any(step.batches for step in steps)]
    means = [samples_of_step(steps) for steps in drawing]
    # the ranks of a replica may see the same samples
    if trial.data_parallel_size != trial.world_size or not means or not all(means):
        return {}

    asked = trial.global_batch_size * (1 + skipped)
    of_seen = sum(filter(None, means))
    # where a rank deals out to all others, its samples are theirs
    share, total = min(
        ((1 / times, of_seen * times) for times in {1.0, scale}),
        key=lambda pair: factor(pair[1], asked),
    )
    columns = {"samples_witness": LOADER, "samples_per_step": total * entered}
    if entered < 1:
        return columns | {"samples_witness": MODEL, "samples_differ": MODEL}

    apart = factor(total, asked)
    if apart <= DOUBTED_BEYOND:
        return columns

    of_process = share * asked / len(drawing)
    steps = [*chain(*drawing)]
    unseen = LOADERS if num_loaders > 1 else UNEXPLAINED
    reason = _reason(trial, steps, of_process) or unseen
    if reason == UNEXPLAINED and apart >= WRONG_BEYOND:
        raise SpecError(
            _wrong(trial, steps, of_process, len(drawing)), code="other_samples"
        )
    return columns | {"samples_differ": reason}


def samples_of_step(steps: Sequence[Draws]) -> float | None:
    """Return the mean samples of a step, from one that drew to the last one that did.

    Several steps may train on one batch; of a single one that is the mean of all steps.
    None: not known.
    """
    drew = [at for at, step in enumerate(steps) if step.batches] or [0]
    samples = [step.samples for step in steps if step.samples is not None]
    if len(samples) < max(_FEWEST_STEPS, len(steps)):
        return None
    return fmean(samples[drew[0] : drew[-1]] or samples)


def _reason(trial: Trial, steps: Sequence[Draws], share: float) -> str | None:
    """Return why processes draw other samples than their share; None: nothing shows it.

    Batches of other sizes than the usual one, as the last of an epoch or those that are
    made by tokens; or steps that take now more batches and now fewer.
    """
    passes = trial.gradient_accumulation_steps
    sizes = [(step.samples or 0.0) / step.batches for step in steps if step.batches]
    counts = [step.batches for step in steps]
    (_, most_alike), *_ = Counter(sizes).most_common(1)

    is_full = factor(max(sizes), share / passes) <= DOUBTED_BEYOND
    are_unlike = is_full and min(sizes) * DOUBTED_BEYOND < max(sizes)
    if are_unlike or 2 * most_alike < len(sizes):
        return BATCH_SIZES
    is_uneven = min(counts) < max(counts) == passes
    return PASSES if is_full and is_uneven else None


def _wrong(
    trial: Trial, steps: Sequence[Draws], share: float, num_processes: int
) -> str:
    local, passes = trial.local_batch_size, trial.gradient_accumulation_steps
    batches = median(step.batches for step in steps)
    samples = median(step.samples or 0.0 for step in steps)
    size = samples / max(batches, 1)
    devices = share / (local * passes)
    shown = f" x {number(devices)} devices of a process" if devices != 1 else ""

    found = (
        f"the program's data loader handed out {number(samples)} samples for each "
        f"optimiser step ({number(batches)} x {number(size)}), where {number(share)} "
        f"were asked: local_batch_size={local} x gradient_accumulation_steps={passes}"
        f"{shown}"
    )
    if size and factor(size, share / passes) < WRONG_BEYOND:
        return (
            f"{found}. If it accumulates gradients over {number(batches)} passes, "
            f"write gradient_accumulation_steps: {max(1, round(batches))}, or let its "
            "command receive {gradient_accumulation_steps}. If an optimizer that is no "
            "torch.optim.Optimizer steps between, write probe: none, and metrics."
        )
    if num_processes > trial.world_size:
        return (
            f"{found}. {num_processes:,} processes train on "
            f"{counted(trial.world_size, 'device')}: let the command start one process "
            "for each device."
        )

    return (
        f"{found}. Its batch size is not the one that the command receives: pass "
        "{local_batch_size} where the program reads it, and let no configuration "
        "override it."
    )


def entered_share(
    process: ProbedProcess, optimizer: int, sources: Collection[Source]
) -> float:
    """Return the share of the samples drawn that entered the model.

    It is below 1 only where it is the same in all steps that were looked at, and in no
    step a size of a tensor, or the length of a sequence, is the number of samples.
    """
    loaders = {loader for loader, _ in sources}
    shares = [
        share
        for note in process.entries
        if note["optimizer"] == optimizer and (share := _entered(note, loaders))
    ]
    is_constant = len(shares) >= _FEWEST_LOOKS and max(shares) - min(shares) < _EQUAL
    return shares[0] if is_constant else 1.0


def _entered(note: Note, loaders: Collection[int]) -> float | None:
    """Return the share of the samples of a step that entered; None: it is not known.

    Tokens of several samples may be packed into one; then as many elements enter.
    """
    drawn = [draw for draw in note["drawn"] if draw[0] in loaders]
    tensors = _largest_tensors(note)
    if not drawn or not tensors:
        return None

    samples, elements = (sum(draw[at] for draw in drawn) for at in (1, 2))
    entered = max(tensors, key=lambda sizes: sizes[2])
    if entered[2] >= elements:
        return 1.0

    of_elements = entered[2] / elements
    first, second = (float(entered[at] / samples) for at in (0, 1))
    if abs(first - of_elements) < _EQUAL:
        return first

    shapes = (sizes[:2] for _, given in note["entered"] for sizes in given)
    if {*chain.from_iterable(shapes)} & {samples, *(size for _, size, _ in drawn)}:
        return 1.0
    return min(1.0, second if abs(second - of_elements) < _EQUAL else first)


def _largest_tensors(note: Note) -> Collection[Counter[int]]:
    """Return the sizes of the largest tensor that entered each module, and elements.

    They are sums over the calls of a module, each of which may get a part of a batch.
    """
    sizes_of = defaultdict[int, Counter[int]](Counter)
    for module, given in note["entered"]:
        tensors = [sizes for sizes in given if len(sizes) > 1]
        largest = max(tensors, key=lambda sizes: sizes[2], default=())
        sizes_of[module].update(dict(enumerate(largest)))
    return [sizes for sizes in sizes_of.values() if sizes]
