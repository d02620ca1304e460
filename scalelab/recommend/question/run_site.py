"""Where a run's sweep is at home: what nodes there are to measure and to train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.inputs.allocation import Allocation
from scalelab.site.profile import Scheduler, Site


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSite:
    """The nodes of the site, or of the node group, that a sweep ran on.

    Parameters
    ----------
    site
        As the experiment names it, resolved on this machine.
    devices_on_node
        Declared or found out here.
    is_emulated
        The network between nodes is declared: one machine may stand for several.
    """

    site: Site
    devices_on_node: int
    is_emulated: bool

    @classmethod
    def by_group(cls, experiment: Experiment | None) -> dict[str | None, RunSite]:
        """Find a sweep's homes, one for each node group of its site.

        Returns
        -------
        dict
            By name of the group, None where nodes are alike; empty where the site is
            not known on this machine.
        """
        if experiment is None:
            return {}
        is_emulated = experiment.workload_name == "emulated"
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
        """Return all the devices there are, where the home is this machine.

        Parameters
        ----------
        measured : ndarray, shape (n_trials,)
            World sizes of the run. A larger one was measured on another machine.

        Returns
        -------
        Allocation or None
            None where the site has a batch system, or this is another machine.
        """
        # Nodes on one machine have no network between them, unless it is declared.
        nodes = (self.site.num_nodes or 1) if self.is_emulated else 1
        is_larger = bool((measured > nodes * self.devices_on_node).any())
        if is_larger or self.site.scheduler is not Scheduler.LOCAL:
            return None
        return Allocation(devices_per_node=(self.devices_on_node,) * nodes)
