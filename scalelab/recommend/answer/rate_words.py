"""The sentences on learning rates and on the batch that they go with."""

from collections.abc import Mapping
from typing import Any

_VERDICTS = {
    "holds": "which did as well",
    "fails": "which did worse",
    "open": "which was not tried",
}


def critical_batch(note: Mapping[str, Any]) -> str:
    """Say up to which batch larger ones save steps."""
    rule = f" with rule {note['rule']}" if note["rule"] else ""
    value, lo, hi = (
        f"{float(f'{note[name]:.2g}'):,.0f}" for name in ("value", "lo", "hi")
    )
    return (
        f"Critical batch{rule}: about {value} samples [{lo}-{hi}]. Up to there, "
        "twice the batch nearly halves the steps; beyond it, more and more of the "
        "samples are wasted."
    )


def found(note: Mapping[str, Any]) -> str:
    """Say which rate was found for each batch, and what the rules would have said."""
    sentence = f"Learning rates found: {'; '.join(map(_found, note['found']))}."
    rules = ", and ".join(
        f"{rule['rate']:.3g} from {rule['rule']}, {_VERDICTS[rule['verdict']]}"
        for rule in note["rules"]
    )
    if not rules:
        return sentence

    first = note["found"][0]["global_batch_size"]
    return (
        f"{sentence} By the rate of batch {first:,}, batch {note['at_batch']:,} would "
        f"get {rules}."
    )


def _found(batch: Mapping[str, Any]) -> str:
    worth = f"best of {batch['num_rates']}"
    if batch["lo"] < batch["hi"]:
        worth += f", {batch['lo']:.3g} to {batch['hi']:.3g} did as well"
    return f"{batch['rate']:.3g} at batch {batch['global_batch_size']:,} ({worth})"
