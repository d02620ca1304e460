"""Text as bytes: finds the files, and splits them into training and held-out parts.

Importing this needs no torch, so a plan can check a text before any node starts.
"""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scalelab.errors import SpecError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Text:
    """The bytes of text files, one after the other, the last ones held out.

    Parameters
    ----------
    data
        A file, a folder of which all files count that are not hidden, or a list of
        such, relative to the working directory; None: the source files of Python's
        standard library, which are on every machine.
    """

    data: str | Sequence[str] | None = None
    held_out_fraction: float = 0.1

    def __post_init__(self) -> None:
        given = (self.data,) if isinstance(self.data, str) else self.data
        if given is not None and not (
            isinstance(given, Sequence)
            and given
            and all(isinstance(text, str) and text for text in given)
        ):
            raise SpecError(
                f"data={self.data!r} must be the path of a file or a folder, or a list "
                "of such.",
                code="not_a_path",
            )

        fraction = self.held_out_fraction
        if isinstance(fraction, bool) or not 0 < fraction < 1:
            raise SpecError(
                f"held_out_fraction={fraction!r} must be between 0 and 1.",
                code="not_a_share",
            )

    @property
    def name(self) -> str:
        """What the observations call the text."""
        return "python-sources" if self.data is None else "text"

    def files(self) -> tuple[Path, ...]:
        """Return the files in the order in which their bytes are read."""
        if self.data is None:
            return _python_sources()
        names = (self.data,) if isinstance(self.data, str) else self.data
        return tuple(file for name in names for file in _files_at(Path(name)))

    def check(self, sequence_length: int, global_batch_size: int = 1) -> None:
        """Refuse a text that is too short; only its files' sizes are looked at."""
        num_bytes = sum(file.stat().st_size for file in self.files())
        num_trained = self._num_trained(num_bytes)

        parts = (
            ("training", num_trained, global_batch_size),
            ("held-out", num_bytes - num_trained, 1),
        )
        for part, size, num_needed in parts:
            found = num_sequences(size, sequence_length)
            if found < num_needed:
                raise SpecError(
                    f"data={self.data!r} has {num_bytes} bytes, and its {part} part of "
                    f"{size} bytes holds {found} sequences of sequence_length="
                    f"{sequence_length}; it must hold {num_needed}. Give more text, "
                    "shorter sequences, a smaller global batch or another "
                    "held_out_fraction.",
                    code="too_few_samples",
                )

    def training_part(self) -> Bytes:
        """Return the bytes to train on."""
        content = _read(self.files())
        return content[: self._num_trained(len(content))]

    def held_out_part(self) -> Bytes:
        """Return the bytes that are held out."""
        content = _read(self.files())
        return content[self._num_trained(len(content)) :]

    def _num_trained(self, num_bytes: int) -> int:
        return num_bytes - round(num_bytes * self.held_out_fraction)


def num_sequences(num_bytes: int, sequence_length: int) -> int:
    """Return how many sequences a part holds: each byte of it is predicted once.

    The first byte has nothing before it, so it is only read.

    >>> num_sequences(8, 4), num_sequences(9, 4)
    (1, 2)
    """
    return max(0, num_bytes - 1) // sequence_length


def _files_at(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise SpecError(
            f"data={str(path)!r} does not exist: {path.resolve()} is neither a file "
            "nor a folder. Correct the path, or leave data out to train on the "
            "source files of Python's standard library.",
            code="data_missing",
        )

    found = sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not found:
        raise SpecError(
            f"data={str(path)!r} is a folder without files. Add some text.",
            code="no_files",
        )

    return found


def _python_sources() -> tuple[Path, ...]:
    folder = Path(sysconfig.get_path("stdlib"))
    found = tuple(sorted(folder.glob("*.py")))
    if not found:
        raise SpecError(
            f"data is not given, and the source files of Python's standard library are "
            f"not in {folder}. Give data, the path of a text.",
            code="data_missing",
        )
    return found


@lru_cache(maxsize=1)
def _read(files: tuple[Path, ...]) -> Bytes:
    return np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])
