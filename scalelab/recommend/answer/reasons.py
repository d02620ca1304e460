"""Why an observation is ignored, in words."""

from collections.abc import Mapping

from scalelab.inputs.numerals import counted

_REASONS = {
    "shared_node": "other jobs ran on the node",
    "loopback_nodes": "the nodes were on one machine",
    "oversubscribed_cores": "there were more ranks than cores",
    "uneven_ranks": "the nodes held different numbers of ranks",
    "unexpected_placement": "the ranks ran elsewhere than asked",
    "code_changed": "the code changed during the sweep",
    "unsteady_clock": "the node's clock was set during the trial",
    "host_paused": "the node stood still during the trial",
    "rate_disagrees": "the program's own rate differs",
    "ranks_apart": "its ranks did not keep step",
    "superseded_engine": "measured by an engine since found wrong",
    "out_of_memory": "the device's memory was too small",
    "host_out_of_memory": "the node's memory was too small",
    "failed": "the trial failed",
    "sharded order": "with a sharded order they depend on the number of ranks",
}
_BUSY = "the computer was too busy to keep the declared times"


def reason_in_words(reason: str, *, is_emulated: bool = False) -> str:
    """Say why an observation is ignored, for one reason or several.

    >>> reason_in_words("shared_node"), reason_in_words("timed_out, code_changed")
    ('other jobs ran on the node', 'timed out, the code changed during the sweep')
    """
    known = {**_REASONS, "unsteady_clock": _BUSY} if is_emulated else _REASONS
    return ", ".join(
        known.get(each, each.replace("_", " ")) for each in reason.split(", ")
    )


def why_ignored(reasons: Mapping[str, int], *, is_emulated: bool = False) -> str:
    """Say why observations are ignored, with their numbers where reasons differ."""
    words = {
        reason_in_words(reason, is_emulated=is_emulated): count
        for reason, count in reasons.items()
    }
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{why} ({count:,})" for why, count in words.items())


def how_many_ignored(
    reasons: Mapping[str, int],
    num_observations: int,
    purpose: str = "",
    *,
    is_emulated: bool = False,
) -> str:
    """Say how many of all observations are ignored, and why."""
    trials = counted(num_observations, "trial")
    if not reasons:
        return f"{trials}, none ignored"
    why = why_ignored(reasons, is_emulated=is_emulated)
    return f"{sum(reasons.values()):,} of {trials} ignored{purpose}: {why}"
