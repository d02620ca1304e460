"""Whether a program draws the samples that its trial asks for, by its data loaders."""

from collections.abc import Sequence
from statistics import median

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial
from scalelab.inputs.numerals import number
from scalelab.launch.command.probe.streams import Draws
from scalelab.plan.first_check import DOUBTED_BEYOND, LOADER, WRONG_BEYOND, factor

# The share of steps in which a wrong number of samples is refused.
_OFTEN = 0.9
_FEWEST_STEPS = 5


def samples_witness(
    trial: Trial, drawn: Sequence[Sequence[Draws]], num_processes: int
) -> str | None:
    """Return what confirms the samples of a step; None where nothing does.

    Parameters
    ----------
    drawn
        For each process of the first node that steps, what it drew for each step.
    num_processes
        Processes that were started on that node; those that they start may step.

    Raises
    ------
    SpecError
        Another number of samples is drawn than the trial asks for.
    """
    if trial.data_parallel_size != trial.world_size:
        return None  # ranks may see the same samples
    drawing = [steps for steps in drawn if any(step.batches for step in steps)]
    if not drawing:
        return None

    asked = trial.local_batch_size * trial.gradient_accumulation_steps
    on_node = asked * trial.allocation.devices_per_node[0]

    shares = {on_node / max(len(drawn), num_processes)}
    if len(drawing) < len(drawn):  # some deal out to the others, of all nodes or of one
        shares |= {on_node / len(drawing), trial.global_batch_size / len(drawing)}

    for steps in drawing:
        known = [step.samples for step in steps if step.samples is not None]
        if len(known) < max(_FEWEST_STEPS, len(steps)):
            return None
        if all(_is_off(known, share) for share in shares):
            raise SpecError(_wrong(trial, steps, max(shares)))
        usual = max(median(known), 1e-9)
        if min(factor(usual, share) for share in shares) > DOUBTED_BEYOND:
            return None

    return LOADER


def _is_off(samples: Sequence[float], share: float) -> bool:
    more = sum(count >= WRONG_BEYOND * share for count in samples)
    fewer = sum(count * WRONG_BEYOND <= share for count in samples)
    return max(more, fewer) >= _OFTEN * len(samples)


def _wrong(trial: Trial, steps: Sequence[Draws], share: float) -> str:
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
            f"{found}. It makes {number(batches)} passes a step: let its command "
            "receive {gradient_accumulation_steps}, or write "
            f"gradient_accumulation_steps: {max(1, round(batches))}."
        )

    return (
        f"{found}. Its batch size is not the one that the command receives: pass "
        "{local_batch_size} where the program reads it, and let no configuration "
        "override it."
    )
