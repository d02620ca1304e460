"""Results of functions, kept by what they were asked."""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

_MOST_KEPT = 500


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is called once with equal arguments, of late.

    Arguments are equal if their pickles are. What is returned must not be changed.
    """
    kept: OrderedDict[bytes, Any] = OrderedDict()

    @wraps(function)
    def asked(*arguments: Any, **named: Any) -> Any:
        key = hashlib.sha256(pickle.dumps((arguments, named))).digest()
        if key not in kept:
            kept[key] = function(*arguments, **named)
        kept.move_to_end(key)
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
        return kept[key]

    return asked
