"""Results of functions, kept by what they were asked."""

import copyreg
import hashlib
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from types import MappingProxyType
from typing import Any

_MOST_KEPT = 500
copyreg.pickle(MappingProxyType, lambda mapping: (dict, (dict(mapping),)))


def _digest(values: object) -> bytes:
    written = io.BytesIO()
    pickler = pickle.Pickler(written)
    pickler.fast = True  # whether two equal values are one object makes no difference
    pickler.dump(values)
    return hashlib.sha256(written.getbuffer()).digest()


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is called once with equal arguments, of late.

    Arguments are equal if their pickles are. What is returned must not be changed.
    """
    kept: OrderedDict[bytes, Any] = OrderedDict()

    @wraps(function)
    def asked(*arguments: Any, **named: Any) -> Any:
        key = _digest((arguments, named))
        if key not in kept:
            kept[key] = function(*arguments, **named)
        kept.move_to_end(key)
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
        return kept[key]

    return asked
