"""Reads the bytes of pictures: one by one, or an archive from front to back.

Pictures are named by their index.
"""

from collections.abc import Sequence
from typing import BinaryIO

from scalelab.errors import SpecError
from scalelab.training.feeding.declared_store import DeclaredStore
from scalelab.training.feeding.pictures import Picture
from scalelab.training.feeding.tar import padded


class PictureReader:
    """Reads pictures of one process, from a declared store if there is one."""

    def __init__(
        self, pictures: Sequence[Picture], store: DeclaredStore | None = None
    ) -> None:
        self._pictures = pictures
        self._store = store
        self._file: BinaryIO | None = None
        self._path = ""
        self._position = 0

    def at(self, index: int) -> bytes:
        """Open the file that holds a picture and read it."""
        picture = self._pictures[index]
        with _opened(picture.path) as file:
            file.seek(picture.offset)
            content = file.read(picture.size)
        self._wait(1, len(content))
        return _whole(content, picture)

    def skip_to(self, index: int) -> None:
        """Go on behind a picture of an archive."""
        picture = self._pictures[index]
        self._open(picture)
        assert self._file is not None
        self._position = self._file.seek(picture.offset + padded(picture.size))

    def onward(self, index: int) -> bytes:
        """Read an archive on, up to the end of a picture, and return the picture.

        What lies before it is read, too, as from a store that streams. An archive is
        opened again for a picture that has been passed.
        """
        picture = self._pictures[index]
        if picture.path != self._path or picture.offset < self._position:
            self._open(picture)
        assert self._file is not None
        needed = picture.offset + padded(picture.size) - self._position
        content = self._file.read(needed)
        self._wait(0, needed)
        first = picture.offset - self._position
        self._position += needed
        return _whole(content[first : first + picture.size], picture)

    def close(self) -> None:
        """Close the archive."""
        if self._file is not None:
            self._file.close()

    def _open(self, picture: Picture) -> None:
        self.close()
        self._file = _opened(picture.path)
        self._path, self._position = picture.path, 0
        self._wait(1, 0)

    def _wait(self, num_opens: int, num_bytes: int) -> None:
        if self._store is not None:
            self._store.wait(num_opens, num_bytes)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise SpecError(
            f"{path} was there when the trial began and cannot be opened now: "
            f"{error.strerror}. Leave the data alone while a sweep runs."
        ) from error


def _whole(content: bytes, picture: Picture) -> bytes:
    if len(content) < picture.size:
        raise SpecError(
            f"{picture.path} has become shorter: of {picture.name!r}, {picture.size} "
            f"bytes from byte {picture.offset} on, {len(content)} are left. Leave the "
            "data alone while a sweep runs."
        )
    return content
