"""Distributions that are installed beside ScaleLab for one test."""

from pathlib import Path


def install(folder: Path, distribution: str, group: str, **entries: str) -> None:
    """Lay the metadata of a distribution with entry points into a folder."""
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {path}" for name, path in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
