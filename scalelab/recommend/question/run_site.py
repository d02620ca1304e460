"""The site that a sweep ran on: its nodes, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment
    from scalelab.site.profile import Site


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSite:
    """The nodes of the site, or of the node group, that a sweep ran on."""

    site: Site
    devices_on_node: int
    # The network between nodes is declared by the user: one machine may stand for
    # several nodes
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """The price of a device or a node per hour.

    Parameters
    ----------
    devices_on_node
        Devices of an exclusive node, all of them charged; None: those that are used.
    """

    usd: float
    said_by: str = "as given"
    per_node: bool = False
    devices_on_node: int | None = None

    @classmethod
    def of(cls, site: Site | None, per_device_hour: float | None = None) -> Self | None:
        """Return the price to use; None where none is given."""
        whole = site.devices_per_node if site and site.exclusive else None
        if per_device_hour is not None:
            return cls(usd=per_device_hour, devices_on_node=whole)
        if site is None:
            return None
        said_by = f"by the profile of site {site.name}"
        if site.price_per_node_hour:
            return cls(usd=site.price_per_node_hour, said_by=said_by, per_node=True)
        if site.price_per_gpu_hour:
            usd = site.price_per_gpu_hour
            return cls(usd=usd, said_by=said_by, devices_on_node=whole)
        return None

    def per_hour(self, world_size: np.ndarray, num_nodes: np.ndarray) -> np.ndarray:
        """Return what allocations are charged per hour, in usd.

        Returns
        -------
        ndarray, shape (n_rows,)

        Examples
        --------
        >>> whole_nodes = Price(usd=2.0, devices_on_node=4)
        >>> whole_nodes.per_hour(np.array([1, 8]), np.array([1, 2]))
        array([ 8., 16.])
        """
        if self.per_node:
            return np.asarray(num_nodes * self.usd)
        if self.devices_on_node is not None:
            return np.asarray(num_nodes * self.devices_on_node * self.usd)
        return np.asarray(world_size * self.usd)

    def in_words(self, device_hour_word: str) -> str:
        """Return the price and its origin in words.

        >>> Price(usd=2.5, said_by="by the profile of site a").in_words("GPU-h")
        'Price: 2.5 usd per GPU-h, by the profile of site a.'
        """
        unit = "node-hour" if self.per_node else device_hour_word
        whole = self.devices_on_node
        nodes = f" of whole nodes, {whole} each" if whole is not None else ""
        return f"Price: {self.usd:g} usd per {unit}{nodes}, {self.said_by}."
