"""The content of a file that a user gives to be read."""

from pathlib import Path

from scalelab.errors import SpecError
from scalelab.inputs.plain_files import opened_by_name
from scalelab.inputs.problems import shown


def read_small_file(path: Path, *, most_bytes: int, remedy: str) -> bytes:
    """Return what a file holds."""
    try:
        with opened_by_name(path, most_bytes) as file:
            content = file.read()
    except OSError as error:
        raise SpecError(
            f"{shown(str(path))} cannot be read: {error.strerror}. {remedy}",
            code="unreadable",
        ) from error

    if not content.strip():
        raise SpecError(f"{shown(str(path))} is empty. {remedy}", code="empty_file")

    return content
