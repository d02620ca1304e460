"""Distributions as pip would have installed them, made by tests."""

from __future__ import annotations

from pathlib import Path


def install(
    folder: Path, name: str, group: str, *, code: str | None = None, **entries: str
) -> None:
    """Install a distribution with entry points into a folder that is on ``sys.path``.

    Parameters
    ----------
    folder
        Where installed packages lie.
    name
        Name of the distribution.
    group
        Group of its entry points.
    code
        What its one module holds, ``<name>_rows``; None: it adds no module.
    entries
        ``module:attribute`` by name of the entry point.
    """
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    if code is not None:
        (folder / f"{name}_rows.py").write_text(code)
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{entry} = {path}" for entry, path in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
