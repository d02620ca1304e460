"""Distributions as pip would have installed them, made by tests."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, code: str, group: str, **entries: str) -> None:
    """Install a distribution of one module into a folder that is on ``sys.path``.

    Parameters
    ----------
    folder
        Where installed packages lie.
    name
        Name of the distribution; its module is ``<name>_rows``.
    code
        What the module holds.
    group
        Group of its entry points.
    entries
        Attribute of the module by name of the entry point.
    """
    module = f"{name}_rows"
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = [f"{entry} = {module}:{value}" for entry, value in entries.items()]
    text = "\n".join([f"[{group}]", *lines]) + "\n"
    (metadata / "entry_points.txt").write_text(text)
