"""What a script needs around it: an interpreter, its code, and its data."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown
from scalelab.running.proposal.options import ScriptOption
from scalelab.running.proposal.script import Script

MOST_COPIED_BYTES = 20 << 20
"""Data beside a script that is larger is named by its path and not copied."""


def interpreter(environment: Mapping[str, str]) -> str:
    """Return the Python that a script is started with: the active environment's.

    It is ``python`` where that is ScaleLab's own, or no environment is active.
    """
    active = environment.get("VIRTUAL_ENV") or environment.get("CONDA_PREFIX")
    program = Path(active or sys.prefix, "bin", "python")
    is_own = program.parent.parent.resolve() == Path(sys.prefix).resolve()
    return "python" if is_own or not program.is_file() else str(program)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The code and the data of a script, as an experiment names them."""

    root: Path  # the command runs in a copy of it
    copied: tuple[str, ...]  # paths below it, folders with a slash at the end
    elsewhere: tuple[tuple[ScriptOption, str], ...]  # with the words for their paths


def surroundings(
    script: Script, directory: Path, options: Iterable[ScriptOption]
) -> Surroundings:
    """Return what a script needs."""
    if not str(script.path).isprintable():
        raise SpecError(
            f"{shown(str(script.path))} holds characters that cannot be shown. Rename "
            "it."
        )
    above = directory.resolve()
    is_below = script.path.is_relative_to(above) and script.module is None
    root = above if is_below else script.import_root
    outside = [each for each in script.beside if not each.is_relative_to(root)]
    if outside and script.module is None:  # such as ../conf of Hydra
        root = Path(os.path.commonpath([root, *outside]))
    wanted = {script.path, *script.beside}
    elsewhere = []
    for option in options:
        for folder in (root, script.path.parent):
            path = _path_below(folder, option.default)
            if path is None or script.path.is_relative_to(path):
                continue
            # A relative path is looked for in the copy of the root.
            if folder == root and path.is_relative_to(root) and _is_small(path):
                wanted.add(path)
            else:
                elsewhere.append((option, shlex.quote(str(path))))
            break
    below = {each for each in wanted if each.is_relative_to(root) and each.exists()}
    copied = sorted(
        each.relative_to(root).as_posix() + ("/" if each.is_dir() else "")
        for each in below
        if not below & {*each.parents}
    )
    return Surroundings(root=root, copied=tuple(copied), elsewhere=tuple(elsewhere))


def _path_below(folder: Path, default: object) -> Path | None:
    if not isinstance(default, str) or not default or os.path.isabs(default):
        return None
    try:
        path = (folder / default).resolve()
        return path if path.exists() else None
    except (OSError, ValueError):
        return None


def _is_small(path: Path) -> bool:
    sizes = (file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    return all(total <= MOST_COPIED_BYTES for total in accumulate(sizes))
