"""Why an observation is ignored, in words."""

from collections.abc import Iterable, Sequence

from scalelab.inputs.numerals import counted
from scalelab.laws.left_out import LeftOut

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


def in_words(reasons: Iterable[str], *, is_emulated: bool = False) -> str:
    """Say why an observation is ignored.

    >>> in_words(["shared_node"]), in_words(["timed_out", "code_changed"])
    ('other jobs ran on the node', 'timed out, the code changed during the sweep')
    """
    known = {**_REASONS, "unsteady_clock": _BUSY} if is_emulated else _REASONS
    return ", ".join(known.get(reason, reason.replace("_", " ")) for reason in reasons)


def why_ignored(left_out: Sequence[LeftOut], *, is_emulated: bool = False) -> str:
    """Say why observations are ignored, with their numbers where reasons differ."""
    words = {
        in_words(reasons, is_emulated=is_emulated): count for reasons, count in left_out
    }
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{why} ({count:,})" for why, count in words.items())


def how_many_ignored(
    left_out: Sequence[LeftOut],
    num_observations: int,
    purpose: str = "",
    *,
    is_emulated: bool = False,
) -> str:
    """Say how many of all observations are ignored, and why."""
    trials = counted(num_observations, "trial")
    if not left_out:
        return f"{trials}, none ignored"
    why = why_ignored(left_out, is_emulated=is_emulated)
    num_ignored = sum(group.num_rows for group in left_out)
    return f"{num_ignored:,} of {trials} ignored{purpose}: {why}"
