"""The sentence for each kind of note."""

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, NamedTuple

from scalelab.experiment.trial import PROGRAM
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import short_label
from scalelab.inputs.numerals import counted, duration, number, percent, plural
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.inputs.problems import Option
from scalelab.plan.diverged import diverged_in_words
from scalelab.plan.first_check import UNEXPLAINED, WHY_OTHERS
from scalelab.recommend.answer import argument_words, ending_words
from scalelab.recommend.answer.comparing_words import (
    against_devices,
    campaign,
    faster_device,
    faster_for,
    nearest_limits,
    programs,
    slower,
)
from scalelab.recommend.answer.facts import Contents, Fact
from scalelab.records.columns import FIRST_EPOCH, OPTION_PREFIX, PAUSES


class _Note(NamedTuple):
    values: Mapping[str, Any]
    device_word: str

    def devices(self, name: str = "world_size") -> str:
        return counted(self.values[name], self.device_word)


class _Sentences(Formatter):
    """Fills the values of a note into its sentences.

    ``{count:n trial}`` counts trials. Of two texts with a bar between them, as in
    ``{count:is|are}``, the first stands for 1 and True, the second for all else.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            one, other = format_spec.split("|")
            return one if value == 1 else other
        how, _, word = format_spec.partition(" ")
        if how == "n":
            return counted(value, word)
        if how in _WRITTEN:
            return _WRITTEN[how](value)
        return format(value, format_spec)


def _during(values: Mapping[str, Any]) -> str:
    if values["count"] == values["num_trials"]:
        return ""
    return f" during {values['count']:,} of {counted(values['num_trials'], 'trial')}"


def in_words(fact: Fact, device_word: str) -> str:
    """Say a note in one or two sentences; a program is named where it has one."""
    sentence = SENTENCES[fact.kind]
    named = f"{fact.values[PROGRAM]}: " if PROGRAM in fact.values else ""
    if isinstance(sentence, str):
        words = {"device": device_word, "plural_device": plural(device_word, 2)}
        values = {**_OPTIONS, **fact.values, **words}
        return named + _Sentences().vformat(sentence, (), values)
    return named + sentence(_Note(fact.values, device_word))


def accepted_in_words(values: Mapping[str, Any]) -> str:
    """Say how many trials hold the conditions of ``accept``."""
    judged, accepted, what = (
        values[name] for name in ("num_judged", "num_accepted", "conditions")
    )
    if not judged:
        return f"No trial has been evaluated yet that could be accepted: {what}."
    verb = "was" if accepted == 1 else "were"
    return f"{accepted:,} of {counted(judged, 'trial')} {verb} accepted: {what}."


_RATES = {"lr_rule": "rule", "base_learning_rate": "base rate", "warmup": "warm-up"}


def setting_in_words(name: str) -> str:
    """Return what a setting is called."""
    short = name.removeprefix(OPTION_PREFIX)
    return _RATES.get(short, short)


def settings_in_words(settings: Mapping[str, Scalar]) -> list[str]:
    """Write settings by name and value.

    >>> settings_in_words({"lr_rule": "sqrt", "options.split_size": 8})
    ['rule sqrt', 'split_size 8']
    """
    return [f"{setting_in_words(name)} {value}" for name, value in settings.items()]


_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    "duration": duration,
    "percent": percent,
    "number": number,
    "below": lambda share: f"{min(int(100 * share), 99)}%",
    "gib": lambda size: number(size / 2**30),
    "list": ", ".join,
    "then": lambda settings: "".join(
        f", {words}" for words in settings_in_words(settings)
    ),
    "sizes": lambda sizes: ", ".join(f"{size:,}" for size in sizes),
    "and": " and ".join,
    "slower": slower,
}


def _missed(note: _Note) -> str:
    values = note.values
    spent = f" ({values['spent']})" if values["spent"] else ""
    sentence = (
        f"Missed: {values['num_missed']:,} of {counted(values['num_runs'], 'run')} did "
        f"not reach {values['target']}{spent}"
    )
    places = [
        f"{group['num_missed']:,} of {group['num_runs']:,} at global batch "
        f"{group['global_batch_size']:,}{_WRITTEN['then'](group['settings'])}, within "
        f"{group['within_samples']:,} samples"
        for group in values["at"]
    ]
    return f"{'; '.join([sentence, *places])}."


def _ruled_out(note: _Note) -> str:
    where = f" on {', '.join(note.values['names'])}" if "names" in note.values else ""
    ways = [f"{way} ({why})" for way, why in note.values["reasons"].items()]
    return f"Ruled out by accuracy{where}: {', '.join(ways)}."


def _uneven(note: _Note) -> str:
    values = note.values
    rate, other = values["samples_per_s"], values["other_samples_per_s"]
    of_whom = "each" if values["is_of_one"] else "together"
    place = ", ".join(filter(None, (values["allocation"], values["curve"])))
    return (
        f"Uneven: {note.devices()} ({place}) with local batch "
        f"{values['local_batch_size']:,} did {number(rate)} samples/s {of_whom}, "
        f"{note.devices('other_world_size')} did {number(other)}. It was measured "
        "once: measure it again."
    )


def _failures(note: _Note) -> str:
    values = note.values
    most = f", {values['num_alike']:,} of them" if values["num_reasons"] > 1 else ""
    num_unfitting = values["num_unfitting"]
    unfitting = f"; {num_unfitting:,} did not fit into memory" if num_unfitting else ""
    return (
        f"From {values['num_measured']:,} of {counted(values['num_trials'], 'trial')}"
        f"{unfitting}; {values['num_failed']:,} failed{most}: {values['reason']}."
    )


def _not_witnessed(note: _Note) -> str:
    least, most = note.values["least"], note.values["most"]
    span = "" if least == most else f"{least:,} to "
    return (
        f"Not witnessed: nothing showed that the ranks of {span}{note.devices('most')} "
        "work together. If each trains alone, their speedup is no scaling. Report "
        "world_size, as the framework says it."
    )


def _own_rate_differs(note: _Note) -> str:
    values = note.values
    batch, printed_s, ours = (
        values[name]
        for name in ("global_batch_size", "reported_step_time_s", "step_time_s")
    )
    then = (
        "One of the two does not count optimiser steps: left out."
        if values["is_left_out"]
        else "Its clock leaves something out or adds it; the answer uses wall time."
    )

    return (
        f"The program's own rate differs in {counted(values['num_trials'], 'trial')}. "
        f"On {note.devices()}, global batch {batch:,}, it prints "
        f"{batch / printed_s:.3g} samples/s ({duration(printed_s)} a step), "
        f"ScaleLab read {batch / ours:.3g} ({duration(ours)}). {then}"
    )


_CONTENTS: Mapping[Contents, str] = {
    "given": "the table's own steps, whatever those contain",
    "steps": "training steps",
    "steps_and_checkpoints": "training steps and checkpoints between them",
    "all": "all between two steps (an evaluation counts only where the measured steps "
    "held one)",
    "whole_runs": "whole runs to the target, whatever those contain: nothing tells "
    "steps apart from them",
}


_FIRST_EPOCH = (
    " All were measured within the first epoch: where it fills a cache, later ones are "
    "faster. More measure.steps reach a second one."
)


# By why later steps of a long trial take another time
_LATER = {
    PAUSES: "Steps pause at even distances, as a long trial shows: the pauses are "
    "counted as evaluation.",
    FIRST_EPOCH: "Steps of the first epoch take {less} times as long as later ones, as "
    "a long trial shows: times are of later ones, and the first epoch is added once.",
    UNEXPLAINED: "Later steps take another time: after the steps that other trials "
    "measure, those of a long trial took {more} times as long, and nothing shows why. "
    "Which of both a long job takes is not known.",
}


def _times_contain(note: _Note) -> str:
    values = note.values
    added = [f"{part} ({duration(s)})" for part, s in values["beside_s"].items()]
    not_in = ", ".join(values["not_in"])
    missing = f"; not in them: {not_in}" if not_in else ""
    first = _FIRST_EPOCH if values.get("of_first_epoch") else ""
    parts = ", ".join([_CONTENTS[values["contents"]], *added])
    return f"Times are of {parts}{missing}.{first}"


def judged_times(values: Mapping[str, Any]) -> str:
    """Say of what times a limit is judged, unless they are of the whole job."""
    parts = " and ".join(["training steps", *values["beside_s"]])
    return f" (of {parts})" if values["not_in"] else ""


def _considered(note: _Note) -> str:
    values = note.values
    more = (
        [f"{Option('gpus')} allows more of them"] if values["may_ask_devices"] else []
    )
    if values["may_ask_batches"]:
        more.append(f"{Option('max_batch')} larger batches")

    return (
        f"Considered: {values['least']} to {note.devices('most')}, {values['batches']}"
        f"{'; ' if more else ''}{', '.join(more)}."
    )


def _efficiency(note: _Note) -> str:
    title, at = {
        "strong": ("Strong efficiency", "at the same global batch"),
        "weak": ("Weak efficiency", f"at the same batch per {note.device_word}"),
        "other": (
            "Efficiency",
            "at the same global batch, else at its best",
        ),
    }[note.values["scaling"]]

    others = note.values["other_settings"]
    layout = short_label(others)
    rest = {name: others[name] for name in others if name not in LAYOUT_PLACEHOLDERS}
    words = [*filter(None, [layout]), *settings_in_words(rest)]
    settings = f" Some rows are against other settings: {', '.join(words)}."

    return (
        f"{title}: samples/s per {note.device_word} against {note.devices()} {at}."
        f"{settings if others else ''}"
    )


def _electricity(note: _Note) -> str:
    values = note.values
    drawn = []
    for device in values["devices"]:
        watts = " to ".join(dict.fromkeys(map(number, device["watts"])))
        name = f" of {device['name']}" if device["name"] else ""
        drawn.append(f"{watts} W per {device['device_word']}{name}")

    cooled = "" if values["pue"] == 1 else f", times a PUE of {values['pue']:g}"
    grams = values["carbon_g_per_kwh"]
    carbon = "" if grams is None else f" Carbon: {grams:g} g CO2e per kWh."

    return (
        f"Energy is {values['source']}: {', '.join(drawn)}, {values['said_by']}{cooled}"
        f"; hosts, networks and idle devices are not in it.{carbon}"
    )


_OPTIONS = {
    "price": Option("price", "2usd", key="DEVICE"),
    "spot": Option("spot", "6h", key="interrupted_every"),
    "spot_price": Option("spot", "0.12usd", key="price"),
    "accept_unmeasured": Option("accept_unmeasured", True),
    "learn_from": Option("learn_from", "RUN"),
    "between_nodes": Option("between_nodes", "200Gbit/s"),
    "max_batch": Option("max_batch"),
}
_CONFIGURATION = (
    "{world_size:n {device}} ({allocation}), local batch {local_batch_size}"
    "{gradient_accumulation_steps:| x {gradient_accumulation_steps} accumulation steps}"
)
# What the runs of a rate say of the rule that gives it
_OF_RULES = {
    "holds": "which did as well",
    "fails": "which did worse",
    "open": "which was not tried",
}


def _critical_batch(note: Mapping[str, Any]) -> str:
    """Say up to which batch larger ones save steps."""
    rule = f" with rule {note['rule']}" if note["rule"] else ""
    value, lo, hi = (
        f"{float(f'{note[name]:.2g}'):,.0f}" for name in ("value", "lo", "hi")
    )
    return (
        f"Critical batch{rule}: about {value} samples [{lo}-{hi}]. Up to there, "
        "twice the batch nearly halves the steps; beyond it, more and more of the "
        "samples are wasted."
    )


def _rates_found(note: Mapping[str, Any]) -> str:
    """Say which rate was found for each batch, and what the rules would have said."""
    sentence = f"Learning rates found: {'; '.join(map(_rate_found, note['found']))}."
    rules = ", and ".join(
        f"{rule['rate']:.3g} from {rule['rule']}, {_OF_RULES[rule['verdict']]}"
        for rule in note["rules"]
    )
    if not rules:
        return sentence

    first = note["found"][0]["global_batch_size"]
    return (
        f"{sentence} By the rate of batch {first:,}, batch {note['at_batch']:,} would "
        f"get {rules}."
    )


def _rate_found(batch: Mapping[str, Any]) -> str:
    worth = f"best of {batch['num_rates']}"
    if batch["lo"] < batch["hi"]:
        worth += f", {batch['lo']:.3g} to {batch['hi']:.3g} did as well"
    return f"{batch['rate']:.3g} at batch {batch['global_batch_size']:,} ({worth})"


SENTENCES: Mapping[str, str | Callable[[_Note], str]] = {
    "why_not": lambda note: argument_words.why_not(note.values, note.device_word),
    "next_step": lambda note: argument_words.next_step(note.values, note.device_word),
    "batches_differ": lambda note: (
        f"Rows differ in batch, {note.values['least']:,} to {note.values['most']:,}: "
        f"each is taken to need {note.values['amount']} ({Option('batch')})."
    ),
    "only_count": "Why {world_size:n {device}}: no other number is compared.",
    "step_time": lambda note: argument_words.ground("step_time", *note),
    "choice_in_draws": lambda note: argument_words.ground("choice_in_draws", *note),
    "target_reached": lambda note: argument_words.ground("target_reached", *note),
    "failures": _failures,
    "diverged": lambda note: diverged_in_words(**note.values),
    "missed": _missed,
    "critical_batch": lambda note: _critical_batch(note.values),
    "rates_found": lambda note: _rates_found(note.values),
    "incomplete_sweep": "The sweep is not complete: {num_trials:n trial} to come.",
    "accepted": lambda note: accepted_in_words(note.values),
    "asked_job": "Asked of {has_own:another job: |a job of }{job:and}.",
    "believed": "Believed, not measured: {beliefs:and}.",
    "programs": lambda note: programs(note.values["times_s"], note.devices()),
    "not_sure_enough": "Measured, but not sure enough: {world_size:n {device}} "
    "({allocation}), global batch {global_batch_size:,} with local batch "
    "{local_batch_size:,}: {time_s:duration}, chance of meeting {limits:and}: "
    "{probability:percent}.",
    "on_the_edge": f"On the edge: {_CONFIGURATION}{{settings:then}}: {{takes:list}}, "
    "would be chosen at a confidence of {probability:below}"
    "{of_doublings: that every doubling pays|}.",
    "faster": lambda note: (
        f"{note.devices()} ({note.values['basis']}): "
        f"{faster_for(note.values['speedup'], note.values['cost_ratio'])}."
    ),
    "to_submit_now": f"To submit now: {_CONFIGURATION}{{settings:then}}: {{basis}}, "
    "{takes:list}.",
    "beyond_the_site": lambda note: argument_words.ground("beyond_the_site", *note),
    "nothing_measured": lambda note: argument_words.ground("nothing_measured", *note),
    "learned_from": "Step times were also learned from {num_curves:n curve} of "
    "{runs:list}: believed, not measured here.",
    "off_the_product": "{num_trials:n end-to-end trial} took {mean_error:+.0%} against "
    "the product of the two laws, {worst_error:.0%} off at most; predictions are "
    "corrected by {correction:+.0%}.",
    "whole_runs": "This way of training does not factorise into samples and steps: "
    "times follow whole runs.",
    "pruned": "Ended early by their source (pruned): {num_attempts:n attempt}; what "
    "they measured until then counts.",
    "contradicting": "Contradicting: {num_configurations:n configuration} "
    "{num_configurations:scatters|scatter} up to {factor:.2g}-fold. {num_runs:n run} "
    f"on {_CONFIGURATION}{{settings:then}}, took {{least_s:duration}} to "
    "{most_s:duration} a step. Repeat on a quiet machine.",
    "doubted": lambda note: (
        f"Doubted: {argument_words.left_out(*note)}. Measure it again."
    ),
    "more_doubted": "{count:n more run} {count:is|are} doubted.",
    "no_repeats": "Nothing was measured twice: intervals assume that runs differ by "
    "the usual few percent. Repeat one.",
    "few_readings": "Scatter unknown: {num_runs:n run} without repeats, and with one "
    "to three readings of the step time in each; the usual scatter is assumed. Report "
    "steps more often, train longer, or raise measure.repeats.",
    "not_witnessed": _not_witnessed,
    "same_data": "Not witnessed: the ranks of {count:n trial} began with the same "
    "batch and hold the same parameters. Times hold; what several ranks learn is what "
    "one would.",
    "ranks_alone": "Each trains alone: in {count:n trial} the parameters and the "
    "gradients of the ranks differed at every step looked at. Wrap the model in "
    "DistributedDataParallel; where it averages weights now and then, write "
    "parallelism: local_sgd.",
    "samples_unexplained": "Not explained: in {count:n trial} a step drew other "
    "samples than were asked for, and nothing shows why. Pass {{local_batch_size}} "
    "where the program reads it.",
    "whole_data": "Each of {most:n rank} draws all samples of its data set in a pass. "
    "{in_epochs:An epoch takes as long as on one rank: give the loader a sampler, "
    "torch.utils.data.DistributedSampler|Where all have the same data set, the loader "
    "lacks a sampler}.",
    "samples_differ": lambda note: (
        f"Drawn, not asked: {number(note.values['samples_per_step'])} samples a step, "
        f"where {note.values['asked']:,} were asked "
        f"({WHY_OTHERS[note.values['why']]}). Rates are of those drawn."
    ),
    "busy_machine": lambda note: (
        f"Other programs used this machine{_during(note.values)} (load "
        f"{note.values['load_average']:.1f} on "
        f"{counted(note.values['cores_at_hand'], 'core')}): these times are too long."
    ),
    "gpu_throttled": "A GPU lowered its clocks in {count:n trial}, for heat or a power "
    "brake: their times are too long.",
    "later_differs": lambda note: _LATER[note.values["why"]].format(
        more=number(note.values["factor"]), less=number(1 / note.values["factor"])
    ),
    "long_trial": lambda note: (
        f"Measured: {counted(note.values['num_trials'], 'trial')} of "
        f"{duration(note.values['each_s'])} of steps, "
        f"{counted(note.values['num_long'], 'long trial')} of "
        f"{duration(note.values['long_s'])}."
    ),
    "another_epoch": "The job counts {samples_per_epoch:,} samples an epoch; a pass "
    "over the program's loaders has {samples_of_pass:,.0f}.",
    "epoch_of_loader": "An epoch has {samples:,} samples: a pass over the program's "
    "data loader.",
    "ended_early": "Ended early: {count:n trial} ended after {num_steps} of "
    "{asked_steps} steps, since the program ended. A job that trains on may take "
    "another time.",
    "one_process": "One process: {count:n trial} ran as a single process that joins no "
    "others, so more CPU slots than were measured are not proposed.",
    "samples_not_witnessed": "Not witnessed: in {count:n trial} nothing confirmed that "
    "a step is of as many samples as were asked. A DataLoader does, or samples "
    "reported beside the steps.",
    "not_settled": lambda note: (
        f"Not settled: {counted(note.values['count'], 'trial')} ended while the step "
        f"time still moved: {argument_words.bound(note.values, note.device_word)}. "
        "A trial goes on for ten times measure.steps, or 2 min. Raise measure.steps."
    ),
    "equal_losses": "Doubted: the trials of global batch {batches:and} print the same "
    "losses, to all digits. The batch size is not read, each rank trains alone, or all "
    "samples are alike.",
    "own_rate_differs": _own_rate_differs,
    "target_not_reached": "Not reached: {target}, by {num_runs:the one run|"
    "{num_runs:n run}} within {within_samples:,} samples; the answer is for {amount}, "
    "which may not suffice.",
    "target_not_measured": "Not measured: samples to {target}; assumes {amount} "
    "suffice.",
    "accuracy_not_measured": "Not measured: accuracy at batch {global_batch_size}; "
    "assumes {amount} suffice.",
    "times_contain": _times_contain,
    "pooled": "Samples to the target are pooled over {settings:and}: told apart, the "
    "runs would predict one another no better.",
    "accuracy_alike": "Accuracy is assumed not to depend on {setting} (chosen: "
    "{value}).",
    "accuracy_gap": "Accuracy of this way: {metric} {mean:+.3f} against one process of "
    "the same samples, batch and seed ({count:one pair|{count} pairs, {lo:+.3f} to "
    "{hi:+.3f}}), measured on {world_size:n {device}} at global batch "
    "{global_batch_size:,}.",
    "accuracy_elsewhere": "On {names:list}: {metric} {mean:+.3f} against one process "
    "({count:one pair|{count} pairs, {lo:+.3f} to {hi:+.3f}}), measured on "
    "{world_size:n device} at global batch {global_batch_size:,}.",
    "ruled_out": _ruled_out,
    "ruled_out_elsewhere": _ruled_out,
    "flat": "{law} is flat beyond what was measured: on more than "
    "{world_size:n {device}}, and at local batches below {least:,} or above {most:,}, "
    "a pass takes as long as at the nearest measured ones.",
    "extrapolated": "Extrapolated: nothing was measured on {world_size:n {device}} "
    "with local batch {local_batch_size:,}{gradient_accumulation_steps:| x "
    "{gradient_accumulation_steps} accumulation steps, of which only the last is taken "
    "to exchange gradients}. Try that briefly before the job.",
    "not_tried": "Not tried: local batch {local_batch_size} there; by measured peaks "
    "it takes {peak_bytes:gib} of the {capacity_bytes:gib} GiB of a {device}.",
    "cut_to_an_epoch": "Only global batches up to {largest:,} are considered: that is "
    "one epoch.",
    "against_cheapest": "Device-hours: {more:percent} more than the cheapest, "
    "{world_size:n {device}}.",
    "nothing_chosen": "Nothing is chosen: another source contradicts every row.",
    "contradicted_not_chosen": "Not chosen: {world_sizes:sizes} {plural_device}. Their "
    "ranks train on the same batches, the batch prints the losses of another, or later "
    "steps take another time; {accept_unmeasured} allows them.",
    "doubted_not_chosen": "Not chosen: {world_sizes:sizes} {plural_device}. What was "
    "measured there was left out; the figures are those of the other rows.",
    "efficiency": _efficiency,
    "efficiency_within": "Efficiencies of other devices are against the fewest of "
    "their own.",
    "above_ideal_on_fewer": "Efficiency over 100%: fewer devices than "
    "{world_size:n {device}}, the smallest measured, exchange less.",
    "above_ideal_on_more": "Efficiency over 100%: {why}.",
    "batch_too_large": "Not chosen: {world_size:n {device}} or more. Their global "
    "batch is beyond {largest:,}, {why}{may_ask:; {max_batch} allows more|}.",
    "unmeasured_not_chosen": "Not chosen: {world_sizes:sizes} {plural_device}. They "
    "rest on what was not measured here, such as a second node; {accept_unmeasured} "
    "allows them."
    "{is_proposed: The proposed trial would tell.|}",
    "considered": _considered,
    "replicas_not_divided": lambda note: (
        f"Not considered: {', '.join(map(str, note.values['world_sizes']))} devices. "
        "As measured, "
        f"{' or '.join(f'{size:g}' for size in note.values['replica_sizes'])} devices "
        "each compute the same samples, and that does not divide them."
    ),
    "replicas_not_known": lambda note: (
        "Not considered: allocations that were not measured. How many of their ranks "
        "would see different samples cannot be told, since it was "
        f"{', '.join(f'{some} of {world}' for some, world in note.values['shares'])}. "
        "Measure an allocation to have it considered."
    ),
    "batch_not_shared": "Not considered: {world_sizes:sizes} {device}s; {batches} "
    "cannot be shared evenly in local batches that are known to fit.",
    "not_identifiable": "Not identifiable: {parameters:and}, because {why}. {remedy}"
    "{may_learn: Or learn from another run on these devices: {learn_from}.|}",
    "link_unknown": "Between nodes nothing was measured and no link is named: "
    "{world_size:n {device}} may take {lo_s:duration} to {hi_s:duration}. "
    "{between_nodes}, or what your link has, narrows that.",
    "uneven": _uneven,
    "device_not_compared": "{name} is not compared: {why}",
    "against_devices": lambda note: against_devices(note.values),
    "nearest": lambda note: nearest_limits(note.values, note.device_word),
    "campaign": lambda note: campaign(note.values, note.device_word),
    "worth_granting": "Worth granting: {least} to {most:n {device}}, best {best}.",
    "faster_device": lambda note: faster_device(note.values),
    "spot_beside": lambda note: ending_words.beside(note.values),
    "spot_pays": lambda note: ending_words.pays(note.values),
    "spot_terms": lambda note: ending_words.terms(note.values),
    "spot_hangs_on": lambda note: ending_words.hangs_on(note.values),
    "spot_history": "Spot price of {name} over {days:number} days in {file}: "
    "{mean:number} {currency} on average, 80% of the hours {lo:number}-{hi:number}, at "
    "most {most:number}{has_price:, above the price on demand {share_above:percent} of "
    "the time|}. It varies by {variation:percent} of its mean; costs take it to go on "
    "so.",
    "spot_never_ends": lambda note: ending_words.never_ends(note.values),
    "spot_not_compared": "The spot market of {names:list} is not compared: "
    "{is_price:what it costs|how often a node is interrupted} is not known. "
    "{is_price:{spot_price}|{spot}} says it.",
    "electricity": _electricity,
    "chained_jobs": lambda note: ending_words.chained(note.values),
    "queue_wait": lambda n: ending_words.queue_wait(n.values, n.device_word),
    "by_time_alone": "Devices are compared by time alone: no price is known of "
    "{devices:list}. {price} says one.",
    "old_price": "The price of {name} is of {date}, {days:n day} ago: look it up "
    "again.",
    "costs_contain": "Costs are of the job's own hours{is_interruptible:, and of what "
    "interruptions add to them| at prices on demand}; storage, data transfer and "
    "repeated runs are not in them.",
    "history_not_read": "Nothing was learned from {run} of the history: it cannot be "
    "read. Restore it, or take it out of that folder.",
    "import_doubted": "The import doubted: {doubt}",
    "answers_held": lambda note: argument_words.answers_held(note.values),
}
