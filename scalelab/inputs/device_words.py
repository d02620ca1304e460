"""The words for devices and device time in messages, answers and reports."""

from __future__ import annotations

from typing import NamedTuple


class DeviceWords(NamedTuple):
    """The name of one device, and of one device for an hour."""

    device: str
    hour: str


_WORDS = {
    "cpu": DeviceWords("CPU slot", "core-h"),
    "tpu": DeviceWords("TPU", "TPU-h"),
}


def device_words(device_type: str | None, *, is_emulated: bool) -> DeviceWords:
    """Return the words for devices of this type.

    Examples
    --------
    >>> device_words("cpu", is_emulated=False).hour
    'core-h'
    """
    if is_emulated:
        return DeviceWords("emulated GPU", "emulated GPU-h")
    return _WORDS.get(device_type or "", DeviceWords("GPU", "GPU-h"))
