"""``scalelab schema``."""

from __future__ import annotations

import json

import typer


def run() -> None:
    """Print the JSON schema of experiments, for editors."""
    from scalelab.experiment.spec import Experiment

    typer.echo(json.dumps(Experiment.json_schema(), indent=2))
