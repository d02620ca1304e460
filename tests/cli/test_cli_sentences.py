"""What the command line itself refuses: each refusal by its code, provoked once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer
from measured_runs import EMULATED, measured_run
from sentences import Golden

from scalelab.cli.main import build_app
from scalelab.inputs.problems import for_the_command_line


def call(*words: str) -> None:
    """Run a command line as ``scalelab`` does, but for what it prints of an error."""
    command = typer.main.get_command(build_app(words[0]))
    with for_the_command_line(), command.make_context("scalelab", [*words]) as context:
        command.invoke(context)


def test_every_refusal_has_a_code_and_a_sentence(here: Path, golden: Golden) -> None:
    measured_run(here / "runs" / "small")
    large = EMULATED.replace("name: small", "name: large")
    Path("large.yaml").write_text(f"{large}confirm_above: {{trials: 1}}\n")
    Path("train.py").write_text("import torch\n")
    Path("there.yaml").write_text("")
    rows = [
        ("not_two_runs", partial(call, "compare", "runs/small")),
        ("kinds_of_site", partial(call, "doctor", "--kinds", "--site", "local")),
        ("job_without_site", partial(call, "doctor", "--job")),
        ("not_run_and_job", partial(call, "follow", "a", "b", "c")),
        ("job_without_run", partial(call, "follow", "17", "--log", "train.py")),
        ("no_table", partial(call, "import")),
        ("no_name_and_value", partial(call, "import", "t.csv", "--column", "a")),
        ("log_without_script", partial(call, "init", "--log", "a.log")),
        ("no_folder", partial(call, "init", "no/e.yaml", "--from", "train.py")),
        ("file_exists", partial(call, "init", "there.yaml")),
        ("unwritable", partial(call, "init", "train.py/e.yaml")),
        ("no_device_counts", partial(call, "recommend", "runs/small", "--gpus", "a")),
        (
            "site_without_script",
            partial(call, "recommend", "runs/small", "--site", "local"),
        ),
        (
            "card_with_format",
            partial(call, "table", "runs/small", "--card", "--runs=3"),
        ),
        (
            "two_places_to_run",
            partial(call, "sweep", "large.yaml", "--in-process", "--detach"),
        ),
        ("no_consent", partial(call, "sweep", "large.yaml")),
    ]
    golden.refusals(rows)
