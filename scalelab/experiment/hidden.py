"""Values that records must not show: a salted hash stands in their place.

Run directories are shared by groups, and the variables under ``env`` may hold keys and
passwords. A hash that took long to compute still shows whether a value has changed.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache

from scalelab.inputs.placeholders import placeholders_in

_HIDDEN = re.compile(r"hidden:([0-9a-f]{16}):([0-9a-f]{32})((?:\{\w+\})*)", re.ASCII)
_ONLY_PLACEHOLDERS = re.compile(r"(\{\w+\})+", re.ASCII)
_ROUNDS = 100_000


def is_hidden(value: str) -> bool:
    """Tell whether a recorded value is a hash in place of the value."""
    return _HIDDEN.fullmatch(value) is not None


def hide(value: str) -> str:
    """Return what records say of a value: salt, hash, and the placeholders in it.

    A value that consists of placeholders is no secret, and stays.

    >>> hide("{seed}"), hide("key-{seed}")[-6:], hide("key") == hide("key")
    ('{seed}', '{seed}', False)
    """
    is_plain = _ONLY_PLACEHOLDERS.fullmatch(value)
    return value if is_plain else _hidden(value, secrets.token_hex(8))


def is_recorded_as(value: str, recorded: str) -> bool:
    """Tell whether a record, hidden or as older runs have it, is that of a value.

    >>> is_recorded_as("key", hide("key")), is_recorded_as("other", hide("key"))
    (True, False)
    """
    found = _HIDDEN.fullmatch(recorded)
    if found is None:
        return value == recorded
    return hmac.compare_digest(_hidden(value, found[1]).encode(), recorded.encode())


def recorded_as(values: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return what records say of values; those that have stayed keep their words."""
    return {
        name: before[name]
        if name in before and is_recorded_as(value, before[name])
        else hide(value)
        for name, value in values.items()
    }


@lru_cache(maxsize=1024)
def _hidden(value: str, salt: str) -> str:
    digest = hashlib.pbkdf2_hmac(
        "sha256", value.encode(errors="surrogatepass"), bytes.fromhex(salt), _ROUNDS
    )
    words = "".join(f"{{{name}}}" for name in placeholders_in(value))
    return f"hidden:{salt}:{digest[:16].hex()}{words}"
