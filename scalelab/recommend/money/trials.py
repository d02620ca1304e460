"""What the trials of a sweep take besides device time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scalelab.recommend.question.objective import Constraints


def trials_take(
    limits: Constraints, held_s: np.ndarray, sizes: np.ndarray, nodes: np.ndarray
) -> dict[str, float]:
    """Return what trials take of what can be added up over devices, by its name.

    ``held_s`` are the seconds for which each holds its devices, shape (n,); trials of
    which it is not known are left out, and where it is known of none nothing is.
    """
    price = limits.price and replace(limits.price, minimum_s=0.0)  # nodes are kept
    known = np.isfinite(held_s) & np.isfinite(nodes)
    spent = replace(limits, limits={}, price=price).spending(
        held_s[known], sizes[known], nodes[known]
    )

    return {
        resource.name: float(spent.of(resource).sum())
        for resource in spent.known
        if resource.is_spent and resource.compares_devices and known.any()
    }


def in_all(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up what is known of every part."""
    return {
        name: sum(part[name] for part in parts)
        for name in next(iter(parts), {})
        if all(name in part for part in parts)
    }
