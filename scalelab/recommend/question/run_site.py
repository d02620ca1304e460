"""The site that a sweep ran on: the nodes there are to measure and to train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.allocation import Allocation
from scalelab.site.profile import Site


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSite:
    """The nodes of the site, or of the node group, that a sweep ran on.

    Parameters
    ----------
    is_emulated
        The network between nodes is declared by the user: one machine may stand for
        several nodes.
    """

    site: Site
    devices_on_node: int
    is_emulated: bool

    @classmethod
    def by_group(cls, experiment: Experiment | None) -> dict[str | None, RunSite]:
        """Return the site of a sweep for each of its node groups."""
        if experiment is None:
            return {}
        is_emulated = experiment.facts is not None and experiment.facts.declares_times
        try:
            return {
                name: cls(
                    site=site,
                    devices_on_node=site.devices_per_node,
                    is_emulated=is_emulated,
                )
                for name, site in experiment.resolve_site().groups.items()
            }
        except SpecError:
            return {}

    def machine(self, measured: np.ndarray) -> Allocation | None:
        """Return all devices of this machine, if the sweep ran on this machine."""
        # Nodes on one machine have no network between them, unless it is declared.
        nodes = (self.site.num_nodes or 1) if self.is_emulated else 1
        is_larger = bool((measured > nodes * self.devices_on_node).any())
        if is_larger or not self.site.is_this_machine:
            return None
        return Allocation(devices_per_node=(self.devices_on_node,) * nodes)
