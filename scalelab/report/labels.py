"""What every figure of a report must say about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Words that go with the numbers of a report.

    Parameters
    ----------
    curve
        What was measured, on what, with which settings.
    device_word, device_hour_word
        What a device is called, e.g. ``GPU`` and ``GPU-h``.
    mode
        What is held fixed along the curve, e.g. ``strong scaling, global batch 256``.
    baseline
        What speedups and efficiencies refer to, with its number of devices.
    repeats
        How many repeats stand behind a measured point, e.g. ``3 repeats``.
    interval
        What the bands are, e.g. ``80% interval``; empty where there are none.
    is_emulated
        Times were declared, not measured.
    """

    curve: str
    device_word: str
    device_hour_word: str
    mode: str
    baseline: str
    repeats: str
    interval: str
    is_emulated: bool

    @property
    def devices(self) -> str:
        """The device word in the plural."""
        return f"{self.device_word}s"

    @property
    def scaling_facts(self) -> tuple[str, ...]:
        """What a scaling plot must carry."""
        baseline = f"baseline: {self.baseline}" if self.baseline else ""
        return (self.curve, self.mode, baseline, self.repeats, self.bands)

    @property
    def bands(self) -> str:
        """What the bands are, as a caption says it."""
        return f"bands: {self.interval}" if self.interval else ""
