"""The content of a file that a user gives to be read, and not of any other."""

from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.problems import shown


def read_small_file(path: Path, *, most_bytes: int, remedy: str) -> bytes:
    """Return what a file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise SpecError(
            f"{shown(str(path))} cannot be read: {error.strerror}. Give the path of a "
            "file."
        ) from error

    if len(content) > most_bytes:
        raise SpecError(
            f"{shown(str(path))} is larger than {most_bytes >> 20} MiB. {remedy}"
        )

    if not content.strip():
        raise SpecError(f"{shown(str(path))} is empty. {remedy}")

    return content
