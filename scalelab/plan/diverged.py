"""Runs that diverged: how many did, and which settings the others did not have."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted
from scalelab.plan.source import Observation

_OPTION, _RATE = "options.", "learning_rate"
_SETTINGS = (
    *(_RATE, "lr_rule", "global_batch_size", "precision", "optimizer"),
    *("parallelism", "warmup", "world_size"),
)


def diverged_runs(rows: Iterable[Observation]) -> dict[str, Any]:
    """Return how many runs diverged, of how many, and where; empty if no run did.

    ``settings`` are those that all diverged runs share and no other run has, each a
    list of its value; of learning rates above all others, of the least and the largest.
    """
    known = [row for row in rows if row.get("diverged") is not None]
    diverged = [row for row in known if row["diverged"]]
    if not diverged:
        return {}

    settings = dict[str, Any]()
    options = (name for row in known for name in row if name.startswith(_OPTION))
    for name in dict.fromkeys((*_SETTINGS, *options)):
        values: set[Any] = {row.get(name) for row in diverged} - {None}
        others: set[Any] = {r.get(name) for r in known if not r["diverged"]} - {None}
        if len(values) == 1 and others and not values & others:
            settings[name] = [*values]
        elif name == _RATE and values and others and min(values) > max(others):
            settings[name] = [min(values), max(values)]

    return {
        "num_diverged": len(diverged),
        "num_runs": len(known),
        "settings": settings,
    }


def diverged_in_words(
    num_diverged: int, num_runs: int, settings: Mapping[str, Sequence[Scalar]]
) -> str:
    """Say how many runs diverged.

    >>> diverged_in_words(2, 9, {"learning_rate": [0.7]})
    '2 of 9 runs diverged, both at learning rate 0.7.'
    """
    words = {1: "at", 2: "both at"}.get(num_diverged, "all at")
    named = []
    for name, ends in settings.items():
        title = name.removeprefix(_OPTION).replace("_", " ")
        named.append(f"{title} {' to '.join(map(_text, ends))}")

    where = f", {words} {', '.join(named)}" if named else ""
    return f"{num_diverged:,} of {counted(num_runs, 'run')} diverged{where}."


def _text(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
