"""The configurations that a law is asked for: a frame, or keywords."""

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any

import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.fields import several
from scalelab.inputs.guessed import by_guess
from scalelab.inputs.problems import one_of, shown

_SHOWN_CURVES = 3
_GUESSED = by_guess(
    {
        "world_size": "gpus num_gpus n_gpus devices n ranks",
        "num_nodes": "nodes n_nodes",
        "local_batch_size": "batch batch_size local_batch per_gpu_batch",
        "global_batch_size": "global_batch",
        "gradient_accumulation_steps": "accumulation grad_accum",
    }
)


def asked_configurations(
    frame: object,
    keywords: Mapping[str, Any],
    columns: Collection[str],
    example: str,
) -> pd.DataFrame:
    """Return the frame, or a row per combination of what the keywords say.

    The columns are those that a keyword may name; the example is one of them.

    Raises
    ------
    SpecError
        Neither or both are given, the frame is none, or a keyword is none of the
        columns.
    """
    if isinstance(frame, pd.DataFrame) and not keywords:
        return frame
    if frame is not None or not keywords:
        given = "both" if keywords else shown(frame)
        number = frame if isinstance(frame, int) else 32
        raise SpecError(
            f"predict takes keywords or a frame of configurations, not {given}. Write "
            f"law.predict({example}={number}), or give a frame with such columns.",
            code="not_a_frame",
        )

    for name in keywords:
        if name not in columns:
            right = _GUESSED.get(name, "")
            hint = f"Write {right}." if right in columns else one_of(columns, name)
            raise SpecError(
                f"predict: {name} is no column of a configuration. {hint}",
                code="unknown_column",
            )

    values = [several(value) for value in keywords.values()]
    return pd.DataFrame(product(*values), columns=list(keywords))


def law_in_words(name: str, curves: Iterable[str], use: str) -> str:
    """Return a short text that stands for a fitted law."""
    labels = [*curves]
    left = len(labels) - _SHOWN_CURVES
    more = f" and {left} more" if left > 0 else ""
    return f"<{name} of {', '.join(labels[:_SHOWN_CURVES])}{more}: {use}>"
