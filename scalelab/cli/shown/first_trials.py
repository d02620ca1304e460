"""What first trials show, as a small table, and what to change in the experiment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from scalelab.inputs.lines import aligned, ended, one_line
from scalelab.inputs.numerals import counted, duration, number, percent
from scalelab.inputs.outcome import Outcome
from scalelab.plan.first_check import (
    ALONE,
    BOUNDS,
    INSIDE,
    LOG,
    NOT_WITNESSED,
    Finding,
    Sign,
    loss_ends,
    samples_of_step,
)
from scalelab.plan.source import Observation
from scalelab.running.execution import Checked, Tried, read_first_trials
from scalelab.running.sweep import Sweep
from scalelab.session import marks_in_words

_SHOWN_REASON = 400
_NOT_READ = "not read"


def table(tried: Tried) -> list[str]:
    """Return what was read of each trial, a column each, one program below another."""
    lines: list[str] = []
    for program in dict.fromkeys(checked.program for checked in tried.trials):
        columns = [
            _column(checked) for checked in tried.trials if checked.program == program
        ]
        rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
        lines += aligned(rows, left=[True] * len(rows[0]))
    return lines


def verdict(tried: Tried) -> list[str]:
    """Say what is wrong or doubtful, each with the keys of the experiment to change."""
    lines: list[str] = []
    for checked in tried.trials:
        for finding in checked.findings:
            lines += _of_finding(checked, finding, has_several=len(tried.trials) > 1)
    for trial in tried.not_tried:
        lines.append(f"Not tried: {_size(trial.world_size, trial.program)}.")
    return lines or ["Nothing is wrong: the steps, their samples and ranks agree."]


def _of_finding(checked: Checked, finding: Finding, *, has_several: bool) -> list[str]:
    text = _in_words(finding, checked.row)
    title = _size(checked.row["world_size"], checked.program)
    where = f"{title}: " if has_several else ""

    lines = [f"{'Wrong' if finding.stops else 'Note'}: {where}{text}"]
    if finding.sign in _HOLDS_REASON:
        reason = one_line(checked.row["reason"] or "no reason was recorded")
        more = " ..." if len(reason) > _SHOWN_REASON else ""
        reason = ended(f"{reason[:_SHOWN_REASON]}{more}")
        lines += [f"  {reason}", f"  Log: {checked.log}"]

    if finding.advice:
        lines.append("  Change in the experiment:")

    for key, value in finding.advice.items():
        flow = yaml.safe_dump(value, default_flow_style=True, width=10_000)
        lines.append(f"    {key}: {flow.splitlines()[0]}")

    return lines


def _size(world_size: int, program: str | None) -> str:
    size = counted(world_size, "device")
    return size if program is None else f"{program}, {size}"


def _column(checked: Checked) -> dict[str, str]:
    row = checked.row
    step_s, wait_s, own_s = (
        row[name] for name in ("step_time_s", "data_wait_s", "reported_step_time_s")
    )
    got, others, peak, accumulation = (
        *(row["cpu_share"], row["other_cpu_share"]),
        *(row["gpu_memory_peak_bytes"], row["gradient_accumulation_steps"]),
    )

    return {
        "": _size(row["world_size"], checked.program),
        "outcome": str(Outcome(row["outcome"])).replace("_", " "),
        "batch": f"{row['global_batch_size']:,} = {row['local_batch_size']} x "
        f"{row['data_parallel_size']}{f' x {accumulation}' * (accumulation > 1)}"
        f"{f', {number(samples_of_step(row))} drawn' * bool(row['samples_differ'])}",
        "steps seen": _steps(row),
        "seen": _SEEN.get(row["measured_by"], _NOT_READ),
        "time per step": _time(step_s),
        "rate, measured": _rate(step_s, row) if step_s else _NOT_READ,
        "rate, its own": (
            f"{_rate(own_s, row)} ({duration(own_s)})" if own_s else "none read"
        ),
        "loss": _loss(checked.losses),
        "ranks met": _ranks(row),
        "waits for input": (
            f"{duration(wait_s)} a step, {percent(wait_s / step_s)}"
            if step_s and wait_s is not None
            else _NOT_READ
        ),
        "cores": (
            f"ran {percent(got)}, others took {percent(others)}"
            if got is not None and others is not None
            else _NOT_READ
        ),
        "device memory": _NOT_READ if peak is None else f"{number(peak / 2**30)} GiB",
        "until first step": _time(row["start_up_s"]),
    }


def _steps(row: Mapping[str, Any]) -> str:
    steps, samples = row["num_steps"], row["num_samples"]
    if steps is None or samples is None:
        return "none"
    seen = f"{round(samples / samples_of_step(row)):,} ({samples:,} samples)"
    return f"{seen}, {steps:,} measured"


def _time(seconds: float | None) -> str:
    return _NOT_READ if seconds is None else duration(seconds)


def _rate(step_time_s: float, row: Mapping[str, Any]) -> str:
    return f"{number(samples_of_step(row) / step_time_s)} samples/s"


def _loss(losses: Sequence[float]) -> str:
    if not losses:
        return _NOT_READ
    ends = loss_ends(losses)
    if ends is None:
        return f"{losses[-1]:.4g}, too few to tell"
    falls = "falling" if ends[1] < ends[0] else "not falling"
    return f"{ends[0]:.4g} -> {ends[1]:.4g}, {falls}"


def _ranks(row: Mapping[str, Any]) -> str:
    if row["world_size"] == 1:
        return "one rank"
    return _RANKS.get(row["ranks_witness"], f"yes ({row['ranks_witness']})")


_RANKS = {
    **dict.fromkeys((None, NOT_WITNESSED), "not witnessed"),
    ALONE: "no, each trains alone",
}
_SEEN = {INSIDE: "where the optimizer steps", LOG: "in what the program prints"}
_HOLDS_REASON = {
    Sign.NOT_MEASURED,
    Sign.LOST,
    Sign.TOO_SILENT,
    Sign.DOES_NOT_FIT,
    Sign.SEVERAL_RANKS_FAIL,
}


_RATES = (
    "{steps} a step and {samples} samples/s were measured, the program's own rate says "
    "{own_steps} and {own_samples} samples/s"
)
_SENTENCES: Mapping[Sign, str] = {
    Sign.NOT_MEASURED: "the trial could not be measured.",
    Sign.LOST: "the trial did not run to its end.",
    Sign.TOO_SILENT: "no step came for too long. If its steps take that long:",
    Sign.DOES_NOT_FIT: "local batch {local_batch_size} did not fit.",
    Sign.SEVERAL_RANKS_FAIL: "the trial could not be measured. If the program trains "
    "in one process:",
    Sign.RATES_DISAGREE: f"two rates disagree: {_RATES}. What its lines count is not "
    "what metrics says (samples, or forward passes?), or its own clock leaves "
    "something out.",
    Sign.LOG_DISAGREES: "{steps} a step and {samples} samples/s were measured where "
    "the optimizer steps, and the data loader confirms them. The program's output says "
    "{own_steps} and {own_samples} samples/s: only its metrics are read.",
    Sign.SAMPLES_NOT_WITNESSED: "nothing confirms that a step is of "
    "{global_batch_size:,} samples; that is what the experiment asks for.",
    Sign.SAME_DATA: "all {world_size} ranks began with the same batch. The time of a "
    "step holds; what they learn is what one of them would.",
    Sign.NOT_SETTLED: "its steps had not settled when it ended: later ones take "
    "{bound} {steps}. It still warms up or slows down, or it shares the machine.",
    Sign.EQUAL_LOSSES: "the trials of global batch {batches} print the same losses, to "
    "all digits: the batch size is not read, each rank trains alone, or all samples "
    "are alike.",
    Sign.UNLIKELY_SPEEDUP: "by what the program prints, {world_size} ranks reach "
    "{speedup:.3g} times the samples/s of one rank. Check whether its lines count the "
    "samples of one rank (then their group is samples_of_rank) or of all ranks.",
    Sign.RANKS_ALONE: "each of {world_size} ranks trains a model of its own: their "
    "parameters and gradients differ at every step that was looked at.",
    Sign.SAMPLES_DIFFER: "a step trained on {samples_per_step:.4g} samples, where "
    "{global_batch_size:,} were asked for: {why}.",
    Sign.RANKS_NOT_WITNESSED: "nothing showed that the {world_size} ranks met.",
    Sign.BUSY_MACHINE: "other programs used this machine (load {load_average:.1f} on "
    "{cores_at_hand} cores): its threads ran for {cpu_share:.0%} of the time in which "
    "they could, so its times are too long. Measure on a quiet machine.",
    Sign.GPU_THROTTLED: "a GPU lowered its clocks, for heat or a power brake: its "
    "times are too long.",
    Sign.LOSS_NOT_FALLING: "the loss does not fall within these few steps: {first:.4g} "
    "-> {last:.4g}.",
    Sign.WAITS_FOR_INPUT: "{share:.0%} of a step is spent waiting for input.",
    Sign.MARKED: "a sweep would leave this trial out of its fits: {why}.",
}


def _in_words(finding: Finding, row: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {
        **row,
        **finding.figures,
        "bound": BOUNDS.get(row["step_time_bound"], "about"),
    }
    if values["step_time_s"]:
        values["steps"] = duration(values["step_time_s"])
    if "reported_samples_per_s" in values:
        values |= {
            "samples": number(values["throughput_samples_per_s"]),
            "own_steps": duration(values["reported_step_time_s"]),
            "own_samples": number(values["reported_samples_per_s"]),
        }

    if "marks" in values:
        values["why"] = marks_in_words(
            values["marks"], is_emulated=bool(row["emulated"])
        )

    return _SENTENCES[finding.sign].format_map(values)


def of_sweep(asked: Sweep, unsound: Sequence[Observation], experiment: Path) -> str:
    """Say which first trials of a sweep failed their check, and what to change."""
    lines = [
        line
        for checked in read_first_trials(asked, unsound).trials
        for finding in checked.findings
        for line in _of_finding(checked, finding, has_several=True)
    ]

    remedy = (
        f"Mend that, look at it with scalelab try {experiment}, then sweep again. "
        "--skip-check runs every trial, whatever the first one shows."
    )
    return "\n".join([*lines, remedy])
