"""The words of a command line, and the program that they start with."""

import os
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.placeholders import placeholders_in
from scalelab.inputs.problems import did_you_mean
from scalelab.records.code import check_paths
from scalelab.site.profile import Site


def check_start(file: str | Path, experiment: Experiment, site: Site) -> None:
    """Refuse code that is not there, before anything starts.

    Of several programs each fails its own trials alone.
    """
    root, copied = experiment.code_root, experiment.snapshot_paths
    try:
        if not root.is_dir():
            raise SpecError(
                f"code.root: there is no folder {root}. Give the folder of the code, "
                "relative to the experiment file.",
                code="no_folder",
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
    except SpecError as error:
        raise SpecError(f"{file}: {error}", code=error.code) from error


def words_of(command: str) -> list[str]:
    """Return the words of a command line, as a shell would divide it."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SpecError(
            f"command={command[:200]!r} is no command line: {error}. No shell reads "
            "it: quote words that hold spaces, and escape single quotes.",
            code="not_a_command_line",
        ) from error

    if not words:
        raise SpecError(
            "command is empty. Write the program and its arguments.",
            code="empty_command",
        )
    return words


def search_path() -> str:
    """Return the ``PATH`` of commands: ScaleLab's own environment comes first."""
    environment = Path(sys.executable).parent
    return f"{environment}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def check_program(name: str, search_path: str, directory: str) -> None:
    """Refuse a program that cannot be executed, as execvp would look for it."""
    path = os.path.join(directory, name) if os.sep in name else name
    if shutil.which(path, path=search_path) is None:
        raise SpecError(
            f"command: {name!r} is no program that can be executed in {directory} or "
            "on its PATH. No shell reads the command: write, for example, python "
            "train.py, or make the file executable.",
            code="program_missing",
        )


def check_script(
    words: list[str], root: Path, copied: Collection[str], *, is_here: bool
) -> None:
    """Refuse a script of Python that is not there."""
    program, script = Path(words[0]).name, words[1] if len(words) > 1 else ""
    if not (program.startswith("python") and script.endswith(".py")) or "{" in script:
        return

    path, is_absolute = root / script, os.path.isabs(script)
    if not path.is_file() and (is_here or not is_absolute):
        near = [path.with_name(file.name) for file in path.parent.glob("*.py")]
        names = [os.path.relpath(file, root) for file in near]
        raise SpecError(
            f"command: {script!r} is no file in {root}. {did_you_mean(names, script)}"
            "Give the script's path from there: the folder of the experiment file, or "
            "code.root.",
            code="script_missing",
        )

    places = [(root / name).resolve() for name in copied]
    is_copied = any(path.resolve().is_relative_to(place) for place in places)
    if places and not (is_absolute or is_copied):
        raise SpecError(
            f"command: {script!r} is not among code.snapshot={list(copied)}, and the "
            "command runs in that copy. Add it.",
            code="script_not_copied",
        )


def with_program_beside(command: str, root: Path, directory: Path) -> str:
    """Return a command whose program lies beside the code, and not in its copy.

    A relative path of a program, such as ``envs/mine/bin/python``, is looked for in the
    copy first, then in the folder that the copy is of.
    """
    program, *others = words_of(command)
    beside = root / program
    is_path = os.sep in program and not os.path.isabs(program)
    if not is_path or (directory / program).exists() or not beside.exists():
        return command
    # Not resolved: the Python of a virtual environment is a link.
    return shlex.join([os.path.normpath(beside), *others])
