"""The sentence for each kind of note."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scalelab.inputs.numerals import counted, duration, number, percent, plural
from scalelab.inputs.support import Support
from scalelab.inputs.wording import Option
from scalelab.recommend.answer.facts import Contents, Fact, Kind

_GIB = 2**30


class _Note(NamedTuple):
    """The values of a note, and what a device is called."""

    of: Mapping[str, Any]
    device_word: str

    def devices(self, name: str = "world_size") -> str:
        return counted(self.of[name], self.device_word)


def in_words(fact: Fact, device_word: str) -> str:
    """Say a note in one or two sentences."""
    return _SENTENCES[fact.kind](_Note(fact.values, device_word))


def accepted_in_words(values: Mapping[str, Any]) -> str:
    """Say how many trials hold the conditions of ``accept``."""
    judged, accepted, what = (
        values[name] for name in ("num_judged", "num_accepted", "conditions")
    )
    if not judged:
        return f"No trial has been evaluated yet that could be accepted: {what}."
    verb = "was" if accepted == 1 else "were"
    return f"{accepted:,} of {counted(judged, 'trial')} {verb} accepted: {what}."


def _failures(note: _Note) -> str:
    of = note.of
    most = f", {of['num_alike']:,} of them" if of["num_reasons"] > 1 else ""
    unfitting = (
        f"; {of['num_unfitting']:,} did not fit into memory"
        if of["num_unfitting"]
        else ""
    )
    return (
        f"From {of['num_measured']:,} of {counted(of['num_trials'], 'trial')}"
        f"{unfitting}; {of['num_failed']:,} failed{most}: {of['reason']}."
    )


def _programs(note: _Note) -> str:
    times = note.of["times_s"]
    said = [f"{name} {duration(times[name])}" for name in sorted(times, key=times.get)]
    return f"Programs on {note.devices()}, each with its best batch: {', '.join(said)}."


def _not_sure_enough(note: _Note) -> str:
    of = note.of
    return (
        f"Measured, but not sure enough: {note.devices()} ({of['allocation']}), global "
        f"batch {of['global_batch_size']:,} with local batch "
        f"{of['local_batch_size']:,}: {duration(of['time_s'])}, chance of meeting "
        f"{' and '.join(of['limits'])}: {percent(of['probability'])}."
    )


def _configuration(note: _Note) -> str:
    steps = note.of["gradient_accumulation_steps"]
    return (
        f"{note.devices()} ({note.of['allocation']}), local batch "
        f"{note.of['local_batch_size']}"
        f"{f' x {steps} accumulation steps' if steps > 1 else ''}"
    )


def _contradicting(note: _Note) -> str:
    of = note.of
    return (
        f"Contradicting: {counted(of['num_runs'], 'run')} on {_configuration(note)}, "
        f"took {duration(of['least_s'])} to {duration(of['most_s'])} a step. Find out "
        "why, and measure it again."
    )


def _doubted(note: _Note) -> str:
    factor = note.of["factor"]
    slower = factor > 1
    return (
        f"Doubted: a run on {_configuration(note)}, was "
        f"{factor if slower else 1 / factor:.2g} times "
        f"{'slower' if slower else 'faster'} than the other rows say; it hardly moves "
        "the expected time. Measure it again."
    )


def _not_witnessed(note: _Note) -> str:
    least, most = note.of["least"], note.of["most"]
    span = "" if least == most else f"{least:,} to "
    return (
        f"Not witnessed: nothing showed that the ranks of {span}{note.devices('most')} "
        "work together. If each trains alone, their speedup is no scaling. Report "
        "world_size, as the framework says it."
    )


def _own_rate_differs(note: _Note) -> str:
    of = note.of
    batch, own, ours = (
        of[name]
        for name in ("global_batch_size", "reported_step_time_s", "step_time_s")
    )
    then = (
        "One of the two does not count optimiser steps: left out."
        if of["is_left_out"]
        else "Its clock leaves something out or adds it; the answer uses wall time."
    )
    return (
        f"The program's own rate differs in {counted(of['num_trials'], 'trial')}. On "
        f"{note.devices()}, global batch {batch:,}, it prints {batch / own:.3g} "
        f"samples/s ({duration(own)} a step), ScaleLab read {batch / ours:.3g} "
        f"({duration(ours)}). {then}"
    )


def _target_not_reached(note: _Note) -> str:
    count = note.of["num_runs"]
    runs = "the one run" if count == 1 else counted(count, "run")
    return (
        f"Not reached: {note.of['target']}, by {runs}; the answer is for "
        f"{note.of['amount']}, which may not suffice."
    )


_CONTENTS: Mapping[Contents, str] = {
    "given": "Times are made of the given step times, whatever those contain; "
    "start-up comes on top.",
    "steps": "Times are of training steps alone; start-up, evaluation and "
    "checkpoints come on top.",
    "steps_and_checkpoints": "Times are of training steps and checkpoints "
    "between them; start-up and evaluation come on top.",
    "all_no_evaluation_seen": "Times contain all between two reported steps, "
    "evaluation too if there was any: metrics.evaluation matched no line. Start-up "
    "comes on top.",
    "all": "Times contain all between two reported steps, evaluation too unless "
    "metrics.evaluation sets it apart; start-up comes on top.",
}


def _batch_too_large(note: _Note) -> str:
    of = note.of
    more = f"; {Option('max_batch')} allows more" if of["may_ask"] else ""
    return (
        f"Not chosen: {note.devices()} or more. Their global batch is beyond "
        f"{of['largest']:,}, {of['why']}{more}."
    )


def _unmeasured_not_chosen(note: _Note) -> str:
    trial = " The proposed trial would tell." if note.of["is_proposed"] else ""
    return (
        f"Not chosen: rows that say {Support.NOT_MEASURED!s}. They rest on a belief "
        f"about other machines; {Option('accept_unmeasured', True)} allows them.{trial}"
    )


def _considered(note: _Note) -> str:
    of = note.of
    more = [f"{Option('gpus')} allows more of them"] if of["may_ask_devices"] else []
    if of["may_ask_batches"]:
        more.append(f"{Option('max_batch')} larger batches")
    return (
        f"Considered: {of['least']} to {note.devices('most')}, {of['batches']}"
        f"{'; ' if more else ''}{', '.join(more)}."
    )


def _batch_not_shared(note: _Note) -> str:
    sizes = ", ".join(f"{size:,}" for size in note.of["world_sizes"])
    return (
        f"Not considered: {sizes} {plural(note.device_word, 2)}; {note.of['batches']} "
        "cannot be shared evenly in local batches that are known to fit."
    )


def _not_identifiable(note: _Note) -> str:
    of = note.of
    learning = (
        f" Or learn from another run on these devices: {Option('learn_from', 'RUN')}."
    )
    return (
        f"Not identifiable: {' and '.join(of['parameters'])}, because {of['why']}. "
        f"{of['remedy']}{learning if of['may_learn'] else ''}"
    )


_SENTENCES: Mapping[Kind, Callable[[_Note], str]] = {
    "failures": _failures,
    "incomplete_sweep": lambda note: (
        f"The sweep is not complete: {counted(note.of['num_trials'], 'trial')} to come."
    ),
    "accepted": lambda note: accepted_in_words(note.of),
    "programs": _programs,
    "not_sure_enough": _not_sure_enough,
    "learned_from": lambda note: (
        f"Step times were also learned from {counted(note.of['num_curves'], 'curve')} "
        f"of {', '.join(note.of['runs'])}."
    ),
    "off_the_product": lambda note: (
        f"{counted(note.of['num_trials'], 'end-to-end trial')} took "
        f"{100 * note.of['mean_error']:+.0f}% against the product of the two laws, "
        f"{100 * note.of['worst_error']:.0f}% off at most; predictions are "
        f"corrected by {100 * note.of['correction']:+.0f}%."
    ),
    "whole_runs": lambda note: (
        "This way of training does not factorise into samples and steps: times follow "
        "whole runs."
    ),
    "pruned": lambda note: (
        "Ended early by their source (pruned): "
        f"{counted(note.of['num_attempts'], 'attempt')}; what they measured until then "
        "counts."
    ),
    "contradicting": _contradicting,
    "more_contradicting": lambda note: (
        f"{counted(note.of['count'], 'more configuration')} "
        f"{'has' if note.of['count'] == 1 else 'have'} contradicting runs."
    ),
    "doubted": _doubted,
    "more_doubted": lambda note: (
        f"{counted(note.of['count'], 'more run')} "
        f"{'is' if note.of['count'] == 1 else 'are'} doubted."
    ),
    "no_repeats": lambda note: (
        "Scatter unknown: nothing was measured twice; further runs are taken to differ "
        "by the usual few percent. Repeat some."
    ),
    "few_readings": lambda note: (
        f"Scatter unknown: {counted(note.of['num_runs'], 'run')} without repeats, and "
        "with one to three readings of the step time in each; the usual scatter is "
        "assumed. Report steps more often, train longer, or raise measure.repeats."
    ),
    "not_witnessed": _not_witnessed,
    "own_rate_differs": _own_rate_differs,
    "target_not_reached": _target_not_reached,
    "target_not_measured": lambda note: (
        f"Not measured: samples to {note.of['target']}; assumes {note.of['amount']} "
        "suffice."
    ),
    "accuracy_not_measured": lambda note: (
        f"Not measured: accuracy at batch {note.of['global_batch_size']}; assumes "
        f"{note.of['amount']} suffice."
    ),
    "times_contain": lambda note: _CONTENTS[note.of["contents"]],
    "accuracy_alike": lambda note: (
        f"Accuracy is assumed not to depend on {note.of['setting']} (chosen: "
        f"{note.of['value']})."
    ),
    "accumulation_not_measured": lambda note: (
        "Accumulation was not measured: of the passes of a step, only the last is "
        "taken to exchange gradients."
    ),
    "extrapolated": lambda note: (
        f"Extrapolated: nothing was measured on {note.devices()} with local batch "
        f"{note.of['local_batch_size']:,}. Try that briefly before the job."
    ),
    "not_tried": lambda note: (
        f"Not tried: local batch {note.of['local_batch_size']} there; by measured "
        f"peaks it takes {number(note.of['peak_bytes'] / _GIB)} of the "
        f"{number(note.of['capacity_bytes'] / _GIB)} GiB of a {note.device_word}."
    ),
    "cut_to_an_epoch": lambda note: (
        f"Only global batches up to {note.of['largest']:,} are considered: that is one "
        "epoch."
    ),
    "no_efficiency": lambda note: (
        f"No efficiency (-): rows leave open what {note.of['baseline']} would take for "
        "the same global batch."
    ),
    "above_ideal_on_fewer": lambda note: (
        f"Efficiency over 100%: {note.of['baseline']} would compute the same global "
        "batch in smaller local batches, or its devices hinder one another."
    ),
    "above_ideal_on_more": lambda note: (
        f"Efficiency over 100%: on more devices than {note.of['baseline']} a local "
        "batch is smaller and may fit a cache, or the baseline was measured slow."
    ),
    "batch_too_large": _batch_too_large,
    "unmeasured_not_chosen": _unmeasured_not_chosen,
    "considered": _considered,
    "replicas_not_divided": lambda note: (
        f"Not considered: {', '.join(map(str, note.of['world_sizes']))} devices. As "
        f"measured, {' or '.join(f'{size:g}' for size in note.of['replica_sizes'])} "
        "devices each compute the same samples, and that does not divide them."
    ),
    "replicas_not_known": lambda note: (
        "Not considered: allocations that were not measured. How many of their ranks "
        "would see different samples cannot be told, since it was "
        f"{', '.join(f'{some} of {world}' for some, world in note.of['shares'])}. "
        "Measure an allocation to have it considered."
    ),
    "batch_not_shared": _batch_not_shared,
    "not_identifiable": _not_identifiable,
    "group_not_compared": lambda note: (
        f"Node group {note.of['group']} is not compared: {note.of['why']}"
    ),
    "import_doubted": lambda note: f"The import doubted: {note.of['doubt']}",
}
