"""What a command starts with must be there: its folder, files, program and script."""

from __future__ import annotations

import os
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.placeholders import placeholders_in
from scalelab.launch.command.first_words import (
    check_program,
    check_script,
    search_path,
    words_of,
)
from scalelab.records.code import check_paths
from scalelab.site.profile import Site


def check_start(file: str | Path, experiment: Experiment, site: Site) -> None:
    """Refuse code that is not there, before anything starts.

    Of several programs each fails its own trials alone. What is no path from the code
    is looked for where trials run on this machine.
    """
    try:
        _check(experiment, site)
    except SpecError as error:
        raise SpecError(f"{file}: {error}") from error


def _check(experiment: Experiment, site: Site) -> None:
    root, copied = experiment.code_root, experiment.snapshot_paths
    if not root.is_dir():
        raise SpecError(
            f"code.root: there is no folder {root}. Give the folder of the code, "
            "relative to the experiment file."
        )
    check_paths(copied, root)
    if experiment.command is None:
        return
    words = words_of(experiment.command)
    is_beside = os.sep in words[0] and not os.path.isabs(words[0])
    if not placeholders_in(words[0]) and (is_beside or site.is_this_machine):
        path = experiment.env.get("PATH", search_path())
        check_program(words[0], path, str(root))
    check_script(words, root, copied, is_here=site.is_this_machine)
