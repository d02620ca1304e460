"""Tar archives: finds their files by parsing the headers, and nothing else.

Each file is preceded by a header of 512 bytes and filled up to a multiple of that; two
blocks of zeros end the archive (POSIX.1-1988 ``ustar``). A name that does not fit comes
before it, as a file of its own: a pax record or GNU's long name.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO
from zlib import adler32

from scalelab.errors import SpecError

BLOCK = 512
_ZEROS = bytes(BLOCK)
_ADLER = 65521
"""The low half of Adler-32 is the sum of the bytes modulo this, and 20 times faster."""
_FILES = frozenset(b"0\x007")
_LINKS_AND_HOLES = frozenset(b"12S")
_LONG_NAME, _PAX = ord("L"), ord("x")


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive: its name, where its content begins, and its size."""

    name: str
    offset: int
    size: int


def members(file: BinaryIO, path: str) -> Iterator[Member]:
    """Yield the regular files of an archive in their order; contents are not read."""
    end = file.seek(0, os.SEEK_END)
    position = 0

    records: dict[str, str] = {}
    while True:
        file.seek(position)
        header = file.read(BLOCK)
        if header == _ZEROS:
            return

        size = _checked_size(header, path, position)
        kind, offset = header[156], position + BLOCK
        if kind in _FILES and "size" in records:
            size = int(records["size"])

        if offset + size > end:
            raise SpecError(
                f"{path} is cut off at byte {end}: the file whose header is at byte "
                f"{position} has {size} bytes. Copy or pack the archive again.",
                code="tar_cut_off",
            )

        position = offset + padded(size)
        if kind == _LONG_NAME:
            records["path"] = _text(file.read(size))
        elif kind == _PAX:
            records |= _pax_records(file.read(size), path, offset)
        else:
            name = _text(header[:100])
            if header[257:263] == b"ustar\0" and header[345]:
                name = f"{_text(header[345:500])}/{name}"

            name = records.get("path") or name
            records = {}
            if kind in _LINKS_AND_HOLES:
                raise SpecError(
                    f"{path}: {name!r}, whose header is at byte {offset - BLOCK}, is a "
                    "link or a sparse file. Pack what it stands for: tar "
                    "--dereference --hard-dereference, and not --sparse.",
                    code="link_in_tar",
                )

            if kind in _FILES and not name.endswith("/"):
                yield Member(name, offset, size)


def padded(size: int) -> int:
    """Return the bytes that a content takes in the archive.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size // BLOCK) * BLOCK


def _checked_size(header: bytes, path: str, position: int) -> int:
    if len(header) < BLOCK:
        raise SpecError(
            f"{path} is cut off at byte {position + len(header)}: the header at byte "
            f"{position} is not whole, and nothing says that the archive ends there. "
            "Copy or pack the archive again.",
            code="tar_cut_off",
        )

    field = header[148:156]
    try:
        # The checksum is computed as if its own field held spaces.
        others = _number(field) - 8 * ord(" ")
        if adler32(header, 0) & 0xFFFF == (others + sum(field)) % _ADLER:
            return _number(header[124:136])
    except ValueError:
        pass

    raise SpecError(
        f"{path}: the {BLOCK} bytes at byte {position} are no header of a tar file. "
        "Pack the archive again, uncompressed.",
        code="not_tar",
    )


def _number(field: bytes) -> int:
    """Return an octal number, or where it does not fit GNU's binary one."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:])
    return int(field.strip(b" \0") or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax_records(content: bytes, path: str, offset: int) -> dict[str, str]:
    """Return the records of a pax header, each ``LENGTH KEY=VALUE`` and a new line."""
    records, position = {}, 0
    try:
        while position < len(content):
            length = int(content[position : content.index(b" ", position)])
            if length < 1:
                raise ValueError
            _, _, record = content[position : position + length].partition(b" ")
            key, _, value = record.removesuffix(b"\n").partition(b"=")
            records[key.decode()] = value.decode("utf-8", "surrogateescape")
            position += length
    except ValueError as error:
        raise SpecError(
            f"{path}: the pax records at byte {offset} cannot be read. Pack the "
            "archive again.",
            code="not_tar",
        ) from error
    return records
