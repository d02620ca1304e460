"""``scalelab recommend``, also ``recommend-resources``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalelab.cli.answering import print_answer, width

if TYPE_CHECKING:
    from scalelab.recommend.recommendation import Recommendation
    from scalelab.session import Run

NOTHING_MEETS = 4
LIMITS, JOB = "Limits", "The job, where the run's own is not meant"


def run(
    run_directory: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of the run.")
    ],
    max_time: Annotated[
        str | None, typer.Option(help="Deadline, e.g. 4h.", rich_help_panel=LIMITS)
    ] = None,
    max_gpu_hours: Annotated[
        str | None,
        typer.Option(help="Device time, e.g. 50gpu-h.", rich_help_panel=LIMITS),
    ] = None,
    max_cost: Annotated[
        str | None,
        typer.Option(help="Money, e.g. 20usd; needs --price.", rich_help_panel=LIMITS),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            help="What a device costs per hour, e.g. 2.5usd.", rich_help_panel=LIMITS
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Metric to reach, e.g. 'val_acc>=0.75'.", rich_help_panel=JOB
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Needs --samples-per-epoch.", rich_help_panel=JOB),
    ] = None,
    samples_per_epoch: Annotated[
        int | None, typer.Option(help="Samples in one epoch.", rich_help_panel=JOB)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="Training samples.", rich_help_panel=JOB)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimiser steps.", rich_help_panel=JOB)
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability with which all limits must hold.")
    ] = 0.9,
    gpus: Annotated[
        str | None, typer.Option(help="Further device counts to consider, e.g. 8,16.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE: narrow the run to one workload or device."),
    ] = None,
    law: Annotated[
        str, typer.Option(help="scalelab, amdahl, usl, ernest, ...")
    ] = "scalelab",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what was fitted and left out.")
    ] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Print the job script; needs --site.")
    ] = False,
    site: Annotated[str | None, typer.Option(help="Site profile for --sbatch.")] = None,
) -> None:
    """Answer: which allocation, batch size and learning-rate rule."""
    from scalelab.cli.import_command import pairs
    from scalelab.experiment.quantities import parse_gpu_hours, parse_usd
    from scalelab.session import load

    job = {
        "epochs": epochs,
        "samples_per_epoch": samples_per_epoch,
        "samples": samples,
        "steps": steps,
    }
    found = load(run_directory)
    answer = found.recommend(
        max_time=max_time,
        max_gpu_hours=parse_gpu_hours(max_gpu_hours) if max_gpu_hours else None,
        max_cost_usd=parse_usd(max_cost) if max_cost else None,
        price_per_gpu_hour_usd=parse_usd(price) if price else None,
        target=target,
        confidence=confidence,
        job={name: value for name, value in job.items() if value is not None},
        gpus=_counts(gpus) if gpus else None,
        select=pairs("--select", select or []),
        law=law,
    )
    _print(found, answer, as_json=as_json, explain=explain, sbatch=sbatch, site=site)
    if not answer.meets_constraints:
        raise typer.Exit(NOTHING_MEETS)


def _print(
    found: Run,
    answer: Recommendation,
    *,
    as_json: bool,
    explain: bool,
    sbatch: bool,
    site: str | None,
) -> None:
    from scalelab.recommend.answer import explain_text

    if as_json:
        typer.echo(json.dumps(_plain(answer.to_json()), indent=2, allow_nan=False))
    elif sbatch:
        typer.echo(found.job_script(answer, site))
    else:
        print_answer(answer)
        if explain:
            typer.echo()
            typer.echo(explain_text(answer, width()))


def _counts(text: str) -> list[int]:
    from scalelab.errors import SpecError

    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise SpecError(
            f"--gpus {text!r} is not a list of device counts. Write, for example, "
            "--gpus 8,16,32."
        )
    return counts


def _plain(value: Any) -> Any:
    """Return JSON values; what is not finite is unknown, and so null."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
