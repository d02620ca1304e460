"""Link what a wheel declares to need, from this environment into another one.

``python link_packages.py WHEEL SITE_PACKAGES``: packages are not installed twice, and
the wheel finds its dependencies and theirs alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

from packaging.requirements import Requirement


def needed_by(found: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a distribution needs here, with some of its extras."""
    for text in found.requires or ():
        wanted = Requirement(text)
        marks = [{"extra": extra} for extra in ("", *extras)]
        if wanted.marker is None or any(map(wanted.marker.evaluate, marks)):
            yield wanted


def closure(found: Distribution) -> dict[str, Distribution]:
    """Return the distributions that one needs, and those that they need, by name."""
    known: dict[str, Distribution] = {}
    waiting = [*needed_by(found, frozenset())]
    asked = set[tuple[str, frozenset[str]]]()
    while waiting:
        wanted = waiting.pop()
        extras = frozenset(wanted.extras)
        if (wanted.name, extras) in asked:
            continue
        asked.add((wanted.name, extras))
        known[wanted.name] = distribution(wanted.name)
        waiting += needed_by(known[wanted.name], extras)
    return known


def link(found: Distribution, site_packages: Path) -> None:
    """Link the files of a distribution, folder by folder, but for its programs."""
    for file in found.files or ():
        if file.parts[0] in ("..", "__pycache__"):
            continue
        place = site_packages / file.parts[0]
        if not place.exists():
            place.symlink_to(Path(str(found.locate_file(file.parts[0]))).resolve())


def main(wheel: str, site_packages: str) -> None:
    """Link what a wheel needs into a folder of packages."""
    with ZipFile(wheel) as archive:
        (metadata,) = (
            folder
            for folder in ZipPath(archive).iterdir()
            if ".dist-info" in str(folder)
        )
        found = PathDistribution(metadata)  # type: ignore[arg-type]
        for package in closure(found).values():
            link(package, Path(site_packages))


if __name__ == "__main__":
    main(*sys.argv[1:])
