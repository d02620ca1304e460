"""Decodes plain PNG images with NumPy and zlib."""

from __future__ import annotations

import zlib
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from scalelab.errors import SpecError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB = 2
Pixels = npt.NDArray[np.uint8]


def decode_png(file: BinaryIO) -> Pixels:
    """Return the pixels of an 8-bit RGB image that is not interlaced.

    Parameters
    ----------
    file
        The image.

    Returns
    -------
    ndarray, shape (height, width, 3)

    Raises
    ------
    SpecError
        If it is no such image, or is damaged.

    References
    ----------
    W3C, Portable Network Graphics, sections 5 (chunks), 9 (filters) and 11.2.
    """
    if file.read(8) != _SIGNATURE:
        raise SpecError("The file is not a PNG image.")
    header, compressed = b"", bytearray()
    while True:
        length, kind = int.from_bytes(file.read(4)), file.read(4)
        content = file.read(length)
        if int.from_bytes(file.read(4)) != zlib.crc32(kind + content) or not kind:
            raise SpecError("The PNG image is damaged: a checksum differs.")
        if kind == b"IHDR":
            header = content
        elif kind == b"IDAT":
            compressed += content
        elif kind == b"IEND":
            break
    width, height = int.from_bytes(header[:4]), int.from_bytes(header[4:8])
    depth, colour, *_, interlace = header[8:]
    if (depth, colour, interlace) != (8, _RGB, 0):
        raise SpecError(
            f"The PNG image has depth {depth}, colour type {colour} and interlace "
            f"{interlace}; only 8-bit RGB without interlace is read."
        )
    return _unfiltered(zlib.decompress(compressed), height, width)


def _unfiltered(content: bytes, height: int, width: int) -> Pixels:
    rows = np.frombuffer(content, dtype=np.uint8).reshape(height, 1 + 3 * width)
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    above = np.zeros((width, 3), dtype=np.uint8)
    for row, filtered in enumerate(rows):
        residuals = filtered[1:].reshape(width, 3)
        pixels[row] = above = _ROW_FILTERS[filtered[0]](residuals, above)
    return pixels


def _none(residuals: Pixels, above: Pixels) -> Pixels:
    return residuals


def _sub(residuals: Pixels, above: Pixels) -> Pixels:
    return np.cumsum(residuals, axis=0, dtype=np.uint8)


def _up(residuals: Pixels, above: Pixels) -> Pixels:
    return residuals + above


def _average(residuals: Pixels, above: Pixels) -> Pixels:
    pixels = residuals.tolist()
    left = [0, 0, 0]
    for x, up in enumerate(above.tolist()):
        left = [(pixels[x][c] + (left[c] + up[c]) // 2) & 0xFF for c in range(3)]
        pixels[x] = left
    return np.array(pixels, dtype=np.uint8)


def _paeth(residuals: Pixels, above: Pixels) -> Pixels:
    pixels = residuals.tolist()
    left, up_left = [0, 0, 0], [0, 0, 0]
    for x, up in enumerate(above.tolist()):
        left = [
            (pixels[x][c] + _paeth_predictor(left[c], up[c], up_left[c])) & 0xFF
            for c in range(3)
        ]
        pixels[x], up_left = left, up
    return np.array(pixels, dtype=np.uint8)


def _paeth_predictor(left: int, up: int, up_left: int) -> int:
    estimate = left + up - up_left
    distances = (abs(estimate - left), abs(estimate - up), abs(estimate - up_left))
    return (left, up, up_left)[distances.index(min(distances))]


_ROW_FILTERS = (_none, _sub, _up, _average, _paeth)
