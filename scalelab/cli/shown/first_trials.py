"""What first trials show, as a small table, and what to change in the experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from scalelab.inputs.lines import aligned, ended, one_line
from scalelab.inputs.numerals import counted, duration, number, percent
from scalelab.inputs.outcome import Outcome
from scalelab.plan.first_check import NOT_WITNESSED, Finding, Sign, loss_ends

if TYPE_CHECKING:
    from scalelab.plan.source import Observation
    from scalelab.running.sweep import Sweep
    from scalelab.running.trying import Checked, Tried

_SHOWN_REASON = 400
_NOT_READ = "not read"


def table(tried: Tried) -> list[str]:
    """Return what was read of each trial, a column each, one program below another."""
    lines: list[str] = []
    for program in dict.fromkeys(each.program for each in tried.trials):
        trials = [each for each in tried.trials if each.program == program]
        titles = ["", *map(_title, trials)]
        rows = [[label, *map(cell, trials)] for label, cell in _ROWS.items()]
        lines += aligned([titles, *rows], left=[True] * len(titles))
    return lines


def verdict(tried: Tried) -> list[str]:
    """Say what is wrong or doubtful, each with the keys of the experiment to change."""
    lines: list[str] = []
    for each in tried.trials:
        for finding in each.findings:
            lines += _of_finding(each, finding, has_several=len(tried.trials) > 1)
    for trial in tried.not_tried:
        lines.append(f"Not tried: {_size(trial.world_size, trial.program)}.")
    return lines or ["Nothing is wrong."]


def _of_finding(each: Checked, finding: Finding, *, has_several: bool) -> list[str]:
    text = _SENTENCES[finding.sign](each.row, finding.figures)
    where = f"{_title(each)}: " if has_several else ""
    lines = [f"{'Wrong' if finding.stops else 'Note'}: {where}{text}"]
    if finding.sign in _HOLDS_REASON:
        reason = one_line(each.row["reason"] or "no reason was recorded")
        if len(reason) > _SHOWN_REASON:
            reason = f"{reason[:_SHOWN_REASON]} ..."
        lines += [f"  {ended(reason)}", f"  Log: {each.log}"]
    if finding.advice:
        lines.append("  Change in the experiment:")
        lines += [
            f"    {_as_yaml(key, value)}" for key, value in finding.advice.items()
        ]
    return lines


def _as_yaml(key: str, value: object) -> str:
    flow = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return f"{key}: {flow.splitlines()[0]}"


def _title(each: Checked) -> str:
    return _size(each.row["world_size"], each.program)


def _size(world_size: int, program: str | None) -> str:
    size = counted(world_size, "device")
    return size if program is None else f"{program}, {size}"


def _outcome(each: Checked) -> str:
    return str(Outcome(each.row["outcome"])).replace("_", " ")


def _batch(each: Checked) -> str:
    row = each.row
    factors = [row["local_batch_size"], row["data_parallel_size"]]
    if (accumulation := row["gradient_accumulation_steps"]) > 1:
        factors.append(accumulation)
    return f"{row['global_batch_size']:,} = {' x '.join(map(str, factors))}"


def _steps(each: Checked) -> str:
    steps, samples = each.row["num_steps"], each.row["num_samples"]
    if steps is None or samples is None:
        return "none"
    seen = samples // each.row["global_batch_size"]
    return f"{seen:,} ({samples:,} samples), {steps:,} measured"


def _step_time(each: Checked) -> str:
    step = each.row["step_time_s"]
    return _NOT_READ if step is None else duration(step)


def _rate(step_time_s: float | None, row: Mapping[str, Any]) -> str:
    if not step_time_s:
        return _NOT_READ
    return f"{number(row['global_batch_size'] / step_time_s)} samples/s"


def _own_rate(each: Checked) -> str:
    own = each.row["reported_step_time_s"]
    if not own:
        return "none read"
    return f"{_rate(own, each.row)} ({duration(own)})"


def _loss(each: Checked) -> str:
    if not each.losses:
        return _NOT_READ
    ends = loss_ends(each.losses)
    if ends is None:
        return f"{each.losses[-1]:.4g}, too few to tell"
    falls = "falling" if ends[1] < ends[0] else "not falling"
    return f"{ends[0]:.4g} -> {ends[1]:.4g}, {falls}"


def _ranks(each: Checked) -> str:
    if each.row["world_size"] == 1:
        return "one rank"
    witness = each.row["ranks_witness"]
    if witness in (None, NOT_WITNESSED):
        return "not witnessed"
    return f"yes ({witness})"


def _input_wait(each: Checked) -> str:
    wait, step = each.row["data_wait_s"], each.row["step_time_s"]
    if wait is None or not step:
        return _NOT_READ
    return f"{duration(wait)} a step, {percent(wait / step)}"


def _memory(each: Checked) -> str:
    peak = each.row["gpu_memory_peak_bytes"]
    return _NOT_READ if peak is None else f"{number(peak / 2**30)} GiB"


def _start_up(each: Checked) -> str:
    start_up = each.row["start_up_s"]
    return _NOT_READ if start_up is None else duration(start_up)


_ROWS: Mapping[str, Callable[[Checked], str]] = {
    "outcome": _outcome,
    "batch": _batch,
    "steps seen": _steps,
    "time per step": _step_time,
    "rate, measured": lambda each: _rate(each.row["step_time_s"], each.row),
    "rate, its own": _own_rate,
    "loss": _loss,
    "ranks met": _ranks,
    "waits for input": _input_wait,
    "device memory": _memory,
    "until first step": _start_up,
}

_HOLDS_REASON = {
    Sign.NOT_MEASURED,
    Sign.LOST,
    Sign.TOO_SILENT,
    Sign.DOES_NOT_FIT,
    Sign.SEVERAL_RANKS_FAIL,
}


def _both_rates(figures: Mapping[str, float | str]) -> str:
    ours, own = figures["step_time_s"], figures["reported_step_time_s"]
    rates = figures["throughput_samples_per_s"], figures["reported_samples_per_s"]
    return (
        f"{duration(float(ours))} a step and {number(float(rates[0]))} samples/s were "
        f"measured, the program's own rate says {duration(float(own))} and "
        f"{number(float(rates[1]))} samples/s"
    )


def _marked(marks: str) -> str:
    from scalelab.session import reason_in_words

    why = reason_in_words(marks)
    return f"a sweep would leave this trial out of its fits: {why}."


_Sentence = Callable[[Mapping[str, Any], Mapping[str, float | str]], str]
_SENTENCES: Mapping[Sign, _Sentence] = {
    Sign.NOT_MEASURED: lambda row, figures: "the trial could not be measured.",
    Sign.LOST: lambda row, figures: "the trial did not run to its end.",
    Sign.TOO_SILENT: lambda row, figures: (
        "no step came for too long. If its steps take that long:"
    ),
    Sign.DOES_NOT_FIT: lambda row, figures: (
        f"local batch {row['local_batch_size']} did not fit."
    ),
    Sign.SEVERAL_RANKS_FAIL: lambda row, figures: (
        "the trial could not be measured. If the program trains in one process:"
    ),
    Sign.SAMPLES_AS_STEPS: lambda row, figures: (
        f"samples were taken for steps: {_both_rates(figures)}."
    ),
    Sign.PASSES_AS_STEPS: lambda row, figures: (
        f"forward passes were taken for optimiser steps: {_both_rates(figures)}."
    ),
    Sign.STEPS_AS_PASSES: lambda row, figures: (
        f"optimiser steps were taken for forward passes: {_both_rates(figures)}."
    ),
    Sign.RATES_DISAGREE: lambda row, figures: (
        f"two rates disagree: {_both_rates(figures)}. What its lines count is not what "
        "metrics says, or its own clock leaves something out."
    ),
    Sign.RANKS_NOT_WITNESSED: lambda row, figures: (
        f"nothing showed that the {figures['world_size']} ranks met."
    ),
    Sign.LOSS_NOT_FALLING: lambda row, figures: (
        f"the loss does not fall within these few steps: {figures['first']:.4g} -> "
        f"{figures['last']:.4g}."
    ),
    Sign.WAITS_FOR_INPUT: lambda row, figures: (
        f"{percent(float(figures['share']))} of a step is spent waiting for input."
    ),
    Sign.MARKED: lambda row, figures: _marked(str(figures["marks"])),
}


def of_sweep(asked: Sweep, unsound: Sequence[Observation], experiment: Path) -> str:
    """Say which first trials of a sweep failed their check, and what to change."""
    from scalelab.running.trying import read_first_trials

    lines = []
    for each in read_first_trials(asked, unsound).trials:
        for finding in each.findings:
            lines += _of_finding(each, finding, has_several=True)
    lines.append(
        f"Mend that, look at it with scalelab try {experiment}, then sweep again. "
        "--skip-check runs every trial, whatever the first one shows."
    )
    return "\n".join(lines)
