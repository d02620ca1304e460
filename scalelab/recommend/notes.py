"""The notes of an answer: what it assumes, and what could not be answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from scalelab.inputs.numerals import counted
from scalelab.laws.support import Gap, Support
from scalelab.recommend.answer.recommendation import OutlookRow
from scalelab.recommend.knowledge import Knowledge
from scalelab.recommend.question.candidates import replica_size, why_unshared


def assumptions(knowledge: Knowledge, chosen: OutlookRow) -> tuple[str, ...]:
    """Return what the answer assumes or leaves open, one sentence for each."""
    need, notes = knowledge.need, []
    amount = need.job and need.job.model_copy(update={"target": None})
    if knowledge.is_few:
        sizes = counted(knowledge.num_sizes, "world size")
        were = "was" if knowledge.num_sizes == 1 else "were"
        notes.append(
            f"Only {sizes} {were} measured: the answer is among the measured "
            "allocations."
        )
    if knowledge.fitted.note:
        notes.append(knowledge.fitted.note)
    if knowledge.factorisation is not None:
        notes.append(knowledge.factorisation.describe())
    if pruned := knowledge.subject.num_pruned:
        notes.append(
            f"Ended early by their source (pruned): {counted(pruned, 'attempt')}; what "
            "they measured until then counts."
        )
    batch = chosen.batch.global_batch_size
    if need.num_missed:
        runs = (
            "the one run" if need.num_missed == 1 else counted(need.num_missed, "run")
        )
        notes.append(
            f"Not reached: {need.target}, by {runs}; the answer is for {amount}, which "
            "may not suffice."
        )
    elif need.target is not None and not need.uses_law:
        notes.append(
            f"Not measured: samples to {need.target}; assumes {amount} suffice."
        )
    elif need.job and not need.uses_law and batch not in need.measured_batches():
        notes.append(
            f"Not measured: accuracy at batch {batch}; assumes {amount} suffice."
        )
    notes += [
        f"Accuracy is assumed not to depend on {name} (chosen: {value})."
        for name, value in chosen.settings.items()
    ]
    if chosen.basis == Support.EXTRAPOLATED:
        devices = counted(chosen.world_size, knowledge.subject.device_word)
        notes.append(
            f"{devices} were not measured: run a short trial there before the job."
        )
    return tuple(notes)


def not_considered(
    knowledge: Knowledge, wanted: Sequence[int], answered: Set[int]
) -> Iterator[str]:
    """Say which of the wanted world sizes have no row, and why."""
    if knowledge.is_few:
        return
    missing = [size for size in wanted if size not in answered]
    yield from why_unshared(knowledge.rows.curves.values(), missing)
    replica = replica_size(knowledge.rows.frame) or 1
    missing = [size for size in missing if size % replica == 0]
    if not missing:
        return
    devices = f"{', '.join(map(str, missing))} {knowledge.subject.device_word}s"
    batches = knowledge.rule.fixed
    if batches and not any(knowledge.rule.splits(int(n / replica)) for n in missing):
        listed = " or ".join(map(str, batches))
        yield (
            f"Not considered: {devices}; global batch {listed} cannot be shared evenly."
        )
    else:
        yield f"Not considered: {devices}; no step time can be predicted there yet."


def not_identifiable(gap: Gap, is_emulated: bool) -> str:
    """Say which parameters of a law cannot be identified, why, and what helps."""
    elsewhere = ""
    is_of_machine = any(name.startswith("inter_node") for name in gap.parameters)
    if is_of_machine and not is_emulated:  # an emulated run declares its own machine
        elsewhere = " Or learn from another run on these devices: --learn-from RUN."
    return (
        f"Not identifiable: {' and '.join(gap.parameters)}, because {gap.why}. "
        f"{gap.remedy}{elsewhere}"
    )
