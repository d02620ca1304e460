"""Numeric network addresses, of either family."""

from __future__ import annotations

import socket


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of a numeric address.

    >>> family_of("10.0.0.7").name, family_of("fd00::7").name
    ('AF_INET', 'AF_INET6')
    """
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bracketed(address: str) -> str:
    """Return a numeric address as it stands before a port.

    >>> bracketed("10.0.0.7"), bracketed("fd00::7")
    ('10.0.0.7', '[fd00::7]')
    """
    return f"[{address}]" if family_of(address) is socket.AF_INET6 else address
