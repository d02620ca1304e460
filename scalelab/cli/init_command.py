"""``scalelab init`` and ``scalelab schema``: what helps to write an experiment."""

import os
from pathlib import Path
from typing import Annotated

import typer

from scalelab.errors import SpecError

TEMPLATE = """\
# yaml-language-server: $schema=experiment.schema.json   (scalelab schema > ...)
name: my-model                 # the run is written to runs/my-model

# What to run: any command, unchanged, ...
command: >-
  python train.py --batch-size {local_batch_size} --lr {learning_rate}
  --accumulate {gradient_accumulation_steps} --out {trial_dir}
launcher: torchrun             # others for srun, MPI, JAX, ...: docs/launchers.md
code: {snapshot: [train.py]}   # copied when the sweep starts
metrics:                       # how it reports a step: a line of its output ...
  regex: 'step +(?P<step>\\d+).* samples +(?P<samples>\\d+)'
#   evaluation: 'val loss'     # and the lines of an evaluation: its time is no step's
# metrics: huggingface         ... or a program whose output is known (docs/recipes.md)
# metrics: {jsonl: $SCALELAB_METRICS}     ... or {"step": 10, "samples": 640} per line
# workload: digits_mlp         # ... or a built-in workload, or my_module:MyWorkload

# What to measure. throughput is cheap; add convergence to learn how many samples
# each global batch needs to the target.
measure: {kind: throughput, warmup_steps: 5, steps: 50, repeats: 3}

# The job the answer is for: epochs, steps, samples, tokens, or a target.
job: {epochs: 90, samples_per_epoch: 1281167}

# The axes: one value or a list each.
gpus: [1, 2, 4, 8]
local_batch_size: [32, 64]     # or auto: the largest that fits
learning_rate: {base: 0.1, at_batch: 256, rule: linear}
"""


def run(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path(
        "experiment.yaml"
    ),
    script: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="SCRIPT",
            help="Propose an experiment for this Python script. It is not run.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="LOG",
            help="Some lines that the script printed: they tell how it reports steps.",
        ),
    ] = None,
) -> None:
    """Write a commented experiment to start from."""
    if script is None and log is not None:
        raise SpecError(
            f"--log {str(log)!r} needs --from: the script that printed it. Add --from "
            "SCRIPT.",
            code="log_without_script",
        )

    if script is None:
        _write(path, TEMPLATE)
        typer.echo(f"Wrote {path}. Edit it. Next: scalelab try {path}")
        return

    if not path.parent.is_dir():  # before imports that take seconds
        raise SpecError(
            f"{path} cannot be written: there is no folder {path.parent}. Choose "
            "another folder, or make it first.",
            code="no_folder",
        )

    _propose(path, script, log)


def schema() -> None:
    """Print the JSON schema of experiments, for editors."""
    import json

    from scalelab.experiment.spec import Experiment

    typer.echo(json.dumps(Experiment.json_schema(), indent=2))


def _propose(path: Path, script: Path, log: Path | None) -> None:
    from scalelab.reading.logs.match import match
    from scalelab.reading.scripts.proposal import Proposal, read
    from scalelab.reading.scripts.script import interpreter, read_script

    of_script = read_script(script)
    proposed = read(
        Proposal(
            script=of_script,
            log=match(log, of_script.all_packages) if log else None,
            log_name=log.name if log else "",
            directory=path.parent,
            python=interpreter(os.environ),
        )
    )

    _write(path, proposed.value)
    found = ", ".join(proposed.evidence) or "no options that a sweep would set"
    typer.echo(f"Wrote {path}. Found in {script}: {found}.")

    for lacking in proposed.doubts:
        typer.echo(f"Fill in {lacking}.")

    typer.echo(f"Next: scalelab try {path}")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(
            f"{path} exists. Give another name, or remove it first.", code="file_exists"
        ) from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}. Choose another folder.",
            code="unwritable",
        ) from error
