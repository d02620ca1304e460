"""Validity reasons known before an attempt starts, such as oversubscribed cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scalelab.cluster.nodes import Node
from scalelab.experiment.trial import Trial
from scalelab.records.attempt import Placement


def validity_of(
    trial: Trial, placement: Placement, nodes: Mapping[str, Node]
) -> tuple[str, ...]:
    """Return the reasons known before an attempt of a trial starts.

    A node may have fewer cores than devices: SLURM gives one core per task unless asked
    for more. What else runs on the nodes takes no cores from the trial, see
    :class:`~.placement.Placer`.
    """
    reasons = []
    if not trial.is_emulated:
        hosts = [nodes[share.node].host for share in placement.shares]
        ranks_on = Counter(
            (host, device)
            for host, share in zip(hosts, placement.shares, strict=True)
            for device in share.device_ids
        )
        if max(ranks_on.values(), default=0) > 1 or any(
            len(share.device_ids) > nodes[share.node].num_cores
            for share in placement.shares
        ):
            reasons.append("oversubscribed_cores")
        if len(set(hosts)) < len(hosts):
            reasons.append("loopback_nodes")
    if len({len(share.device_ids) for share in placement.shares}) > 1:
        reasons.append("uneven_ranks")
    return tuple(reasons)
