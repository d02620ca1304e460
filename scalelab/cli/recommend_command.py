"""``scalelab recommend``, also ``recommend-resources``, and ``scalelab report``.

The answer is written on a terminal, in a pipe, and as JSON for programs.
"""

from __future__ import annotations

import functools
import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalelab.cli.arguments import (
    RunDirectory,
    count,
    flag,
    fraction,
    number,
    option,
)
from scalelab.cli.import_command import pairs
from scalelab.errors import NOTHING_MEETS, SpecError
from scalelab.inputs.lines import between_words

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.errors import FitError, SpecError
    from scalelab.kinds.resources import Resource
    from scalelab.session import Recommendation

ANSWER, ERROR = "scalelab.answer/1", "scalelab.error/1"


def print_json(
    question: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    text: Sequence[str],
    **figures: Any,
) -> None:
    """Print what a command answers: the same envelope around each command's figures.

    Keys are added, never renamed or dropped, while ``schema`` stays what it is. The
    question names the command and what it was asked; each fact has a ``kind`` and
    values, and the text says the same in sentences.
    """
    envelope = {"schema": ANSWER, "question": question, "facts": facts, "text": text}
    _print(envelope | figures)


def print_error(kind: str, code: str, message: str, hint: str) -> None:
    """Print as JSON why a command has no answer."""
    error = {"kind": kind, "code": code, "message": message, "hint": hint}
    _print({"schema": ERROR, **error})


def _print(values: Mapping[str, Any]) -> None:
    import json  # not for --help

    typer.echo(json.dumps(values, indent=2, allow_nan=False, default=str))


def width() -> int | None:
    """Return the columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def say(text: str, *, err: bool = False) -> None:
    """Print a message; on a terminal its lines break between words."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        columns = shutil.get_terminal_size().columns
        text = between_words(text, columns)
    typer.echo(text, err=err)


def print_answer(
    found: Recommendation | FitError | SpecError,
    *,
    explain: bool = False,
    explaining: str = "",
) -> None:
    """Print the recommendation, or why there is none; ``explaining`` is a command."""
    from scalelab.session import answer_text

    if isinstance(found, Exception):
        say(f"No recommendation: {found}", err=True)
    else:
        typer.echo(answer_text(found, width(), explain=explain))
        if not explain and sys.stdout.isatty():
            # in one line, to be pasted
            typer.echo(f"All that stands behind it: {explaining}")


def print_steadiness(observations: pd.DataFrame) -> None:
    """Print whether the machine slowed down, where control trials say something."""
    from scalelab.session import steadiness_sentences

    for line in steadiness_sentences(observations):
        say(line)


MAX_COUNT = 1_000_000
_RUNS = "runs"
_OF_CAMPAIGN = (_RUNS, "pool")
# Groups of options in the help
_LIMITS, _JOB, _CHOICES = "Limits", "The job", "What may be chosen"
_PRICES, _LAWS = "Prices and energy", "Laws and what they learn from"


def asked(
    price: Annotated[
        list[str] | None,
        option(
            "[DEVICE=]2.5usd",
            "What an hour of a device is charged, or of a node, 9usd/node-h "
            "[default: a price list's, else the site's].",
            group=_PRICES,
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        option("FILE", "A price list [default: the site's].", group=_PRICES),
    ] = None,
    spot: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "Compare nodes that may be interrupted: price, interrupted_every, "
            "checkpoint, checkpoint_every, restart, wait, history, device.",
            group=_PRICES,
        ),
    ] = None,
    power: Annotated[
        list[str] | None,
        option(
            "[DEVICE=]400W",
            "What a device draws [default: as measured, else the site's power_w].",
            group=_PRICES,
        ),
    ] = None,
    pue: Annotated[
        float | None,
        option(
            "1.2",
            "Energy of the site over that of its computers.",
            parser=number,
            group=_PRICES,
        ),
    ] = None,
    carbon_g_per_kwh: Annotated[
        float | None,
        option(
            "380",
            "Carbon of the electricity, in g per kWh [default: the site's].",
            parser=number,
            group=_PRICES,
        ),
    ] = None,
    max_gap: Annotated[
        float | None,
        option(
            "0.01",
            "What the final metric loses against one process.",
            parser=fraction,
            group=_LIMITS,
        ),
    ] = None,
    confidence: Annotated[
        float,
        option(
            "0.9",
            "Probability with which all limits hold.",
            parser=fraction,
            group=_LIMITS,
        ),
    ] = 0.9,
    target: Annotated[
        str | None,
        option("'val_acc>=0.75'", "A metric to reach, not the run's own.", group=_JOB),
    ] = None,
    epochs: Annotated[
        float | None,
        option(
            "90",
            "Epochs, of the run's own samples or those said.",
            parser=number,
            group=_JOB,
        ),
    ] = None,
    samples_per_epoch: Annotated[
        int | None,
        option("1281167", "Samples in one epoch.", parser=count, group=_JOB),
    ] = None,
    samples: Annotated[
        int | None, option("1e7", "Training samples.", parser=count, group=_JOB)
    ] = None,
    steps: Annotated[
        int | None, option("10000", "Optimiser steps.", parser=count, group=_JOB)
    ] = None,
    gpus: Annotated[
        str | None,
        option(
            "8,16",
            "Device counts to consider besides the measured [default: doublings].",
            group=_CHOICES,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        option(
            "4096",
            "Global batch [default: any measured].",
            parser=count,
            group=_CHOICES,
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        option(
            "8192",
            "The largest global batch [default: the largest measured].",
            parser=count,
            group=_CHOICES,
        ),
    ] = None,
    local_batch: Annotated[
        int | None,
        option(
            "64", "Local batch [default: any measured].", parser=count, group=_CHOICES
        ),
    ] = None,
    runs: Annotated[
        int | None,
        option(
            "24",
            "A campaign of so many runs; limits are those of all together.",
            parser=count,
            group=_JOB,
        ),
    ] = None,
    pool: Annotated[
        int | None,
        option(
            "32",
            "Devices for all runs of a campaign together.",
            parser=count,
            group=_JOB,
        ),
    ] = None,
    walltime: Annotated[
        str | None,
        option(
            "24h",
            "Add how many chained jobs of at most this time it takes [default: the "
            "site's, where several].",
            group=_JOB,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        option(
            "2min",
            "Time to write a checkpoint at the end of a chained job.",
            group=_JOB,
        ),
    ] = None,
    between_nodes: Annotated[
        str | None,
        option(
            "100Gbit/s",
            "Link between nodes, where none was measured [default: the site's].",
            group=_LAWS,
        ),
    ] = None,
    accept_unmeasured: Annotated[
        bool,
        flag(
            "--accept-unmeasured",
            "Also choose what rests on a term that was not measured here.",
            group=_CHOICES,
        ),
    ] = False,
    select: Annotated[
        list[str] | None,
        option(
            "COLUMN=VALUE", "Narrow the run to one workload or device.", group=_CHOICES
        ),
    ] = None,
    law: Annotated[
        str,
        option(
            "NAME",
            "Law of step time: amdahl, usl, power, pollux, xgboost.",
            group=_LAWS,
        ),
    ] = "scalelab",
    learn_from: Annotated[
        list[Path] | None,
        option(
            "RUN",
            "Another run to learn step times from: of the same devices, or of the "
            "same workload elsewhere [default: the history's].",
            group=_LAWS,
        ),
    ] = None,
    no_history: Annotated[
        bool, flag("--no-history", "Learn from no other run.", group=_LAWS)
    ] = False,
    **limits: str | None,
) -> dict[str, Any]:
    """Return what these options ask, as keywords of ``Run.recommend``."""
    job = {
        "epochs": epochs,
        "samples_per_epoch": samples_per_epoch,
        "samples": samples,
        "steps": steps,
    }
    return dict(
        price=price,
        prices=prices,
        power=power,
        pue=pue,
        carbon_g_per_kwh=carbon_g_per_kwh,
        spot=pairs("--spot", spot or []) or None,
        target=target,
        max_gap=max_gap,
        confidence=confidence,
        job={name: value for name, value in job.items() if value is not None},
        gpus=None if gpus is None else _counts(gpus),
        select=pairs("--select", select or []),
        law=law,
        learn_from=learn_from or [],
        batch=batch,
        max_batch=max_batch,
        local_batch=local_batch,
        runs=runs,
        pool=pool,
        walltime=walltime,
        checkpoint=checkpoint,
        between_nodes=between_nodes,
        accept_unmeasured=accept_unmeasured,
        no_history=no_history,
        **limits,
    )


def said_beyond_defaults(question: dict[str, Any]) -> dict[str, Any]:
    """Return what a question says beyond the defaults."""
    usual = asked()
    words = asked(**question).items()
    return {n: value for n, value in words if value and value != usual.get(n)}


def run(
    run_directory: RunDirectory,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
    explain: Annotated[
        bool, flag("--explain", "Add formulas and fitted parameters.")
    ] = False,
    sbatch: Annotated[bool, flag("--sbatch", "Print the job script.")] = False,
    site: Annotated[
        str | None, option("NAME", "With --sbatch: the site to ask, not the run's.")
    ] = None,
    ask_queue: Annotated[
        bool, flag("--ask-queue", "Ask how long jobs waited in the site's queue.")
    ] = False,
    **question: Any,
) -> None:
    """Answer: which allocation, batch size and learning-rate rule.

    The job is the run's own unless options say another.
    """
    from scalelab.session import load
    from scalelab.session.next_step import explaining

    if site is not None and not sbatch:
        raise SpecError(
            "--site names the site whose job script is printed. Add --sbatch; give "
            "another price with --price.",
            code="site_without_script",
        )

    found = load(run_directory)
    words = asked(**question)

    asks_more = sbatch or said_beyond_defaults(question)
    if (result := found.search_result) and not asks_more:
        if as_json:
            print_json(
                {"command": "recommend", "run": run_directory},
                text=result.sentences,
                facts=result.to_json(),
            )
        else:
            typer.echo("\n".join(result.sentences))
        return

    if ask_queue:
        say(found.ask_queue(), err=True)
    answer = found.recommend(**words)
    if as_json:
        about = {"command": "recommend", "run": run_directory, **words}
        given = {name: value for name, value in about.items() if value}
        print_json(given, text=answer.sentences, **answer.to_json())
    elif sbatch:
        typer.echo(found.job_script(answer, site), nl=False)
    else:
        print_answer(answer, explain=explain, explaining=explaining(found, words))

    if not answer.is_met:
        raise typer.Exit(NOTHING_MEETS)


def report(
    run_directory: RunDirectory,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write [default: RUN/report.html].",
        ),
    ] = None,
    **question: Any,
) -> None:
    """Write the run's report: one self-contained HTML file.

    Its answer is that of the run's own job without limits unless options say more.
    """
    from scalelab.session import load

    typer.echo(load(run_directory).write_report(output, **asked(**question)))


def table(
    run_directory: RunDirectory,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="md|txt|csv", help="How it is written [default: md]."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        option(
            "N",
            "Runs of the job, for the device-hours to ask for [default: 1].",
            parser=count,
        ),
    ] = None,
    card: Annotated[
        bool,
        flag("--card", "Print the answer for the README of a model, with YAML on top."),
    ] = False,
    **question: Any,
) -> None:
    """Print strong and weak scaling as forms and papers do.

    What was measured stands apart from what is predicted; the rows are the answer's.
    """
    from scalelab.session import load

    run, words = load(run_directory), asked(**question)
    words = {n: value for n, value in words.items() if n not in _OF_CAMPAIGN}
    if not card:
        given = 1 if runs is None else runs
        typer.echo(run.scaling_table(given, **words).text(form or "md").rstrip())
        return

    if form is not None or runs is not None:
        raise SpecError(
            "A card is Markdown of one run. Leave out --format and --runs.",
            code="card_with_format",
        )

    typer.echo(run.card(**words))


def with_question(
    command: Callable[..., None], resources: Iterable[Resource]
) -> Callable[..., None]:
    """Return a command with the options of a question: limits, job, choice of rows.

    The command takes what they say as further keywords, for :func:`asked`.
    """
    signature_of_command = inspect.signature(command, eval_str=True)
    directory, *rest, _ = signature_of_command.parameters.values()
    options = [
        inspect.Parameter(
            resource.limit,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                option(
                    resource.example,
                    resource.help,
                    *(
                        f"--{name.replace('_', '-')}"
                        for name in (resource.limit, resource.also_called)
                        if name
                    ),
                    group=_LIMITS,
                ),
            ],
        )
        for resource in resources
    ]

    *every, _ = inspect.signature(asked, eval_str=True).parameters.values()
    taken = {parameter.name for parameter in rest}
    if _RUNS in taken:  # the command means other runs than those of a campaign
        taken |= {*_OF_CAMPAIGN}
    further = [parameter for parameter in every if parameter.name not in taken]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        command(**values)

    parameters = [
        parameter.replace(kind=parameter.KEYWORD_ONLY)
        for parameter in (directory, *options, *further, *rest)
    ]
    signature = signature_of_command.replace(parameters=parameters)
    with_options.__signature__ = signature  # type: ignore[attr-defined]
    return with_options


def _counts(text: str) -> list[int]:

    with suppress(ValueError):
        counts = [int(part) for part in text.split(",")]
        if 1 <= min(counts) <= max(counts) <= MAX_COUNT:
            return counts
    raise SpecError(
        f"--gpus {text[:60]!r} is not a list of device counts from 1 to "
        f"{MAX_COUNT:,}. Write, for example, --gpus {_doublings(text)}.",
        code="no_device_counts",
    )


def _doublings(text: str) -> str:
    # The counts that a range such as 1-8 may mean; else an example.
    found = re.fullmatch(r"\s*(\d{1,6})\s*(?:-|\.\.|:)\s*(\d{1,6})\s*", text)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 1 <= first < last:
        return "8,16,32"
    counts = [first]
    while 2 * counts[-1] < last:
        counts.append(2 * counts[-1])
    return ",".join(map(str, [*counts, last]))
