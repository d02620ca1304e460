"""The next step after an answer: the command that settles more, or that uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.experiment.trial import PROGRAM, TrialKind
from scalelab.inputs.numerals import device_time, rounded_up
from scalelab.inputs.outcome import Support
from scalelab.inputs.placeholders import LAYOUT_PLACEHOLDERS
from scalelab.inputs.problems import Command, for_the_command_line
from scalelab.kinds.resources import RESOURCES
from scalelab.plan.budget import ENDING_S
from scalelab.recommend.answer.facts import Fact
from scalelab.session.arguments import RecommendArguments
from scalelab.site.batch_site import BatchSite

if TYPE_CHECKING:
    from scalelab.recommend.answer.recommendation import NextTrial, Recommendation
    from scalelab.recommend.answer.rows import OutlookRow
    from scalelab.session.records import RunRecords

_OF_WHAT_IF = {"price", "price_per_gpu_hour_usd", "confidence"}
_AMPLE = 2  # times what a trial needs, in a budget for it
_OF_SAMPLES = {"accuracy_not_measured", "target_not_measured"}


def next_step(
    run: RunRecords, answer: Recommendation, asked: Mapping[str, Any]
) -> Fact:
    """Return what to do after an answer.

    Where most trials ran beside other programs, that is to measure again. Where nothing
    meets the limits, that is to ask for what can be met; else to measure
    the trial that would change the answer most, or the samples to the target; else to
    submit the job.
    """
    busy = (fact.values for fact in answer.facts if fact.kind == "busy_machine")
    is_busy = any(2 * values["count"] > values["num_trials"] for values in busy)
    step = _fact("quiet", None) if is_busy else _next_step(run, answer, asked)
    drawn = (f.values for f in answer.facts if f.kind == "choice_in_draws")
    # draws do not choose what was not measured, which a measurement may allow
    is_open = bool(_guessed(answer))
    return Fact.of(
        step.kind, **step.values, drawn=None if is_open else next(drawn, None)
    )


def _next_step(
    run: RunRecords, answer: Recommendation, asked: Mapping[str, Any]
) -> Fact:
    question, where = _said(asked), _shortest(run.directory)
    if not answer.meets_constraints and (row := _of_larger_batch(answer)):
        question["max_batch"] = row.batch.global_batch_size
        ask = Command("recommend", (where,), question)
        return _fact("ask_larger_batch", ask, world_size=row.world_size)
    if not answer.meets_constraints and (nearest := _nearest(answer)):
        ask = Command("recommend", (where,), question | nearest)
        return _fact("ask_what_can_be_met", ask)
    if (trial := answer.next_trial) is not None:
        return _measuring(run, answer, trial)
    if any(row.barred_by == "contradicted" for row in answer.rows):
        return _fact("mend", None)
    if _could_be_trained(run, answer):
        text = _trial(run, answer.chosen, answer.node_group)
        return _fact("train", _sweep(run, f"{text},kind={TrialKind.CONVERGENCE}"))
    for row in (answer.chosen, *_guessed(answer)):
        if _is_beyond(run, row):
            return _fact("elsewhere", None, world_size=row.world_size)
    if any(isinstance(site.site, BatchSite) for site in run.sites.values()):
        submit = Command("recommend", (where,), {**question, "sbatch": True})
        return _fact("submit", submit)

    return _fact("nothing", None)


def _guessed(answer: Recommendation) -> list[OutlookRow]:
    """Return the runner-up, if it is not chosen because nobody measured it here."""
    runners_up = (fact.values for fact in answer.facts if fact.kind == "why_not")
    sizes = {
        values["world_size"]
        for values in runners_up
        if values["reason"] == "not_measured_here"
    }
    return [row for row in answer.alike if row.world_size in sizes]


def _is_beyond(run: RunRecords, row: OutlookRow) -> bool:
    """Tell whether a row was not measured, and no site of the run has its devices."""
    rooms = [site.room() for site in run.sites.values()]
    is_held = [
        room is None or room.holds(row.world_size, row.num_nodes) for room in rooms
    ]
    return row.basis != Support.MEASURED and bool(rooms) and not any(is_held)


def explaining(run: RunRecords, asked: Mapping[str, Any]) -> str:
    """Return the command that says all that stands behind the answer to a question."""
    options = {**_said(asked), "explain": True}
    return str(Command("recommend", (_shortest(run.directory),), options))


def without_limits(run: RunRecords, asked: Mapping[str, Any]) -> str:
    """Return the command that asks a question again, but for limits and a price."""
    kept = RecommendArguments.model_fields.keys() - _OF_WHAT_IF
    question = _said({name: asked[name] for name in asked if name in kept})
    with for_the_command_line():
        return str(Command("recommend", (_shortest(run.directory),), question))


def _said(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a question that say more than their defaults."""
    plain = {name: _plain(value) for name, value in asked.items()}
    return {name: value for name, value in plain.items() if is_said(name, value)}


def is_said(name: str, value: Any) -> bool:
    """Tell whether an argument of a question says more than its default."""
    if value is None or value is False or (isinstance(value, Sized) and not value):
        return False
    field = RecommendArguments.model_fields.get(name)
    return field is None or value != field.default


def _plain(value: Any) -> Any:
    """Return a value as commands and JSON have it; paths as they are typed here."""
    return json.loads(json.dumps(value, default=_as_json))


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return _shortest(value.absolute())
    # an array, a column, a number of NumPy, or another collection
    plain = dict if isinstance(value, Mapping) else list
    return value.tolist() if hasattr(value, "tolist") else plain(value)


def _shortest(path: Path) -> str:
    """Return a path as it is typed here: below the working directory, or absolute."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _fact(step: str, command: Command | None, **values: Any) -> Fact:
    command_values = None if command is None else command._asdict()
    return Fact.of("next_step", step=step, command=command_values, **values)


def _nearest(answer: Recommendation) -> dict[str, str]:
    """Return the limit that can be met, as an option; empty where none can."""
    for fact in answer.facts:
        limits = fact.values["limits"] if fact.kind == "nearest" else ()
        for limit in limits:
            if limit["amount"] is not None:
                resource = RESOURCES[limit["resource"]]
                unit = resource.example.lstrip("0123456789.")
                unit = unit.replace("usd", answer.currency)
                amount = rounded_up(limit["amount"] / float(resource.parse(f"1{unit}")))
                return {resource.limit: f"{amount:g}{unit}"}
    return {}


def _of_larger_batch(answer: Recommendation) -> OutlookRow | None:
    """Return the first row that meets the limits but for its batch, if one may ask."""
    may_ask = any(
        fact.kind == "batch_too_large" and fact.values["may_ask"]
        for fact in answer.facts
    )
    found = (
        row
        for row in answer.rows
        if row.barred_by == "batch"
        and row.basis != Support.NOT_MEASURED
        and (row.probability or 0.0) >= answer.confidence
    )
    return next(found, None) if may_ask else None


def _measuring(run: RunRecords, answer: Recommendation, trial: NextTrial) -> Fact:
    hours, takes, batch = trial.gpu_hours, "", trial.batch
    if hours is not None:
        takes = device_time(hours, answer.device_hour_word)

    cost = {"gpu_hours": hours, "takes": takes, "why": trial.why}
    if run.experiment is not None:
        text = _trial(run, trial, answer.node_group)
        needed = (hours or 0.0) + trial.world_size * ENDING_S / 3600
        return _fact("measure", _sweep(run, text, _AMPLE * needed), **cost)

    return _fact(
        "add_a_row",
        _imported_again(run),
        world_size=trial.world_size,
        allocation=trial.allocation,
        local_batch_size=batch.local_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        **cost,
    )


def _trial(run: RunRecords, asked: NextTrial | OutlookRow, node_group: str) -> str:
    """Return a trial as ``sweep --trial`` reads it, in what the experiment varies."""
    batch, axes = asked.batch, run.experiment.axes if run.experiment else {}
    varied = {*axes, "precision", "parallelism", PROGRAM, *LAYOUT_PLACEHOLDERS}

    values: dict[str, Any] = {
        "gpus": asked.world_size,
        "nodes": asked.allocation.partition("x")[0],
        "local_batch_size": batch.local_batch_size,
    }
    if batch.gradient_accumulation_steps > 1:
        values["gradient_accumulation_steps"] = batch.gradient_accumulation_steps

    values |= {name: value for name, value in asked.settings.items() if name in varied}
    if node_group:
        values["node_group"] = node_group

    return ",".join(f"{name}={value}" for name, value in values.items())


def _sweep(run: RunRecords, trial: str, hours: float = 0.0) -> Command:
    file = run.source.get("file")
    options = {"trial": trial}
    if run.is_adaptive:  # its budget counts what ran already
        spent = run.observations["allocated_gpu_s"].sum() / 3600
        options["budget"] = f"{rounded_up(spent + hours):g}gpu-h"
    if (site := run.site_name) is not None:
        options["site"] = site
    if run.directory != Path("runs", run.name).absolute():
        options["directory"] = _shortest(run.directory)
    subject = _shortest(Path(file)) if file else f"{run.name}.yaml"
    return Command("sweep", (subject,), options)


def _imported_again(run: RunRecords) -> Command | None:
    if "file" not in run.source:
        return None
    number = 2
    while (again := run.directory.with_name(f"{run.directory.name}-{number}")).exists():
        number += 1
    subjects = (_shortest(Path(run.source["file"])), _shortest(again))
    return Command("import", subjects, run.source["arguments"])


def _could_be_trained(run: RunRecords, answer: Recommendation) -> bool:
    """Tell whether a run to the target would show that the samples suffice."""
    job = run.experiment.job if run.experiment else None
    is_open = any(fact.kind in _OF_SAMPLES for fact in answer.facts)
    return bool(job and job.target and is_open and not answer.is_emulated)
