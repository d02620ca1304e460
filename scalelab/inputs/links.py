"""Links between nodes as users write them: ``100Gbit/s``, ``12.5GB/s 5us``."""

import re
from dataclasses import dataclass
from typing import Self

from scalelab.errors import SpecError

_BYTES_PER_S = {
    f"{letter}{unit}": 1000.0**power / bits
    for power, letter in enumerate("MGT", 2)
    for unit, bits in (("bit/s", 8), ("bps", 8), ("B/s", 1))
}
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9}
_QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([A-Za-zµ/]{1,6})")
_LINK = re.compile(r"\s*([0-9.]+\s*[A-Za-z/]+)(?:\s*,\s*|\s+)(\S.*)")
_SLOWEST, _FASTEST = 1.25e5, 1e13  # bytes/s
_LONGEST_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The network between two nodes, as its data sheet states it."""

    bandwidth_bytes_per_s: float
    latency_s: float | None = None  # time of the smallest message; None: not stated
    said_by: str = ""  # who says so, if not the user

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a bandwidth, and after it a latency if one is stated."""
        found = _LINK.fullmatch(text)
        bandwidth, latency = found.groups() if found else (text, None)
        return cls(
            bandwidth_bytes_per_s=parse_bandwidth(bandwidth),
            latency_s=None if latency is None else parse_latency(latency),
        )

    def __str__(self) -> str:
        latency = "" if self.latency_s is None else f" {self.latency_s * 1e6:.6g}us"
        return f"{self.bandwidth_bytes_per_s * 8 / 1e9:.6g}Gbit/s{latency}"


def parse_bandwidth(text: str) -> float:
    """Return a bandwidth in bytes per second."""
    found = _QUANTITY.fullmatch(text.strip())
    if found and re.fullmatch("[MGT]b/s", found[2]):
        raise SpecError(
            f"{text[:60]!r} may mean bits or bytes. Write "
            f"{found[1]}{found[2][0]}bit/s for bits or {found[1]}{found[2][0]}B/s for "
            "bytes.",
            code="bits_or_bytes",
        )

    if found is None or found[2] not in _BYTES_PER_S:
        raise SpecError(
            f"{text[:60]!r} is not a bandwidth. Write a positive number and one of the "
            "units Mbit/s, Gbit/s, Tbit/s, MB/s, GB/s and TB/s, such as '100Gbit/s' or "
            "'12.5GB/s'.",
            code="not_a_bandwidth",
        )

    value = float(found[1]) * _BYTES_PER_S[found[2]]
    if not _SLOWEST <= value <= _FASTEST:
        raise SpecError(
            f"{text[:60]!r} is not the bandwidth of a network: it must lie between "
            "1Mbit/s and 80Tbit/s.",
            code="bandwidth_out_of_range",
        )

    return value


def parse_latency(text: str) -> float:
    """Return a latency in seconds."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2] not in _PER_SECOND or float(found[1]) == 0:
        raise SpecError(
            f"{text[:60]!r} is not a latency. Write a positive number and one of the "
            "units ns, us, ms and s, such as '5us' or '0.2ms'.",
            code="not_a_latency",
        )

    value = float(found[1]) / _PER_SECOND[found[2]]
    if value > _LONGEST_S:
        raise SpecError(
            f"{text[:60]!r} is not a latency: it must be at most 1s.",
            code="latency_out_of_range",
        )

    return value
