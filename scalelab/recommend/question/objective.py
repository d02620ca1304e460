"""The limits an answer must respect, and what nodes cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.money import USUAL, Money
from scalelab.inputs.problems import Option
from scalelab.inputs.target import Target
from scalelab.kinds.resources import (
    CARBON_G_PER_KWH,
    MONEY,
    POWER_W,
    PRICE_PER_HOUR,
    RESOURCES,
    TIME,
    Resource,
    Units,
    Usage,
    weighed_most,
)

if TYPE_CHECKING:
    import numpy as np

    from scalelab.experiment.spec import Experiment
    from scalelab.inputs.links import Link
    from scalelab.recommend.money.power import Power
    from scalelab.recommend.money.prices import Price
    from scalelab.recommend.question.spending import Spending
    from scalelab.site.profile import Site


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSite:
    """The nodes of the site, or of the node group, that a sweep ran on."""

    site: Site
    devices_on_node: int
    # The network between nodes is declared by the user: one machine may stand for
    # several nodes
    is_emulated: bool
    # What the trials' own logs say of the network between nodes
    logged_link: Link | None = None

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

    def room(self, measured: Iterable[float] = ()) -> Allocation | None:
        """Return all devices of the site; None: no limit is known, or more ran."""
        return self._of_nodes(self.site.num_nodes, measured)

    def machine(self, measured: Iterable[float]) -> Allocation | None:
        """Return all devices of this machine, if the sweep ran on this machine."""
        if not self.site.is_this_machine:
            return None
        # Nodes on one machine have no network between them, unless it is declared.
        return self._of_nodes(self.site.num_nodes if self.is_emulated else 1, measured)

    def _of_nodes(
        self, nodes: int | None, measured: Iterable[float]
    ) -> Allocation | None:
        if nodes is None:
            return None
        devices = Allocation(devices_per_node=(self.devices_on_node,) * nodes)
        is_exceeded = any(size > devices.world_size for size in measured)
        return None if is_exceeded else devices


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """Limits on the job, and how sure the answer must be."""

    # By the resource's name, in the unit of its field; see ``read_limits``
    limits: Mapping[str, float] = field(default_factory=dict)
    price: Price | None = None
    power: Power | None = None
    pue: float = 1.0  # energy of the site over that of its computers
    carbon_g_per_kwh: float | None = None
    # Devices of an exclusive node, all of them charged; None: those that are used
    devices_on_node: int | None = None
    target: Target | None = None
    # What a trained model must hold, in words, and the most of its final metric that
    # may be lost against one process
    accept: tuple[str, ...] = ()
    max_gap: float | None = None
    confidence: float = 0.9
    # Speed-up per device added below which a further doubling does not pay: 1 is a
    # doubling that halves the time, 0 one that changes nothing
    min_marginal_return: float = 0.7
    interval: float = 0.8

    def __post_init__(self) -> None:
        for resource, value in self.limited:
            if not 0 < value < float("inf"):
                raise SpecError(
                    f"{resource.max_field}={value} must be a positive number.",
                    code="limit_not_positive",
                )

    @property
    def limited(self) -> list[tuple[Resource, float]]:
        """The resources that are limited, and how much of each is allowed."""
        return [(RESOURCES[name], limit) for name, limit in self.limits.items()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """What is asked of trained models, in words."""
        if self.max_gap is None:
            return self.accept
        return (*self.accept, f"an accuracy gap of at most {self.max_gap:g}")

    def units(self, device_hour_word: str) -> Units:
        """Return the units of an answer: a limit of money has those of the price."""
        currency = self.price.currency if self.price else self.currency
        source = self.power.source if self.power else ""
        return Units(device_hour_word, currency or USUAL, source)

    @property
    def currency(self) -> str:
        """The currency of a limit of money; empty: none is said."""
        limit = self.limits.get(MONEY.name)
        return limit.currency if isinstance(limit, Money) else ""

    def in_words(self, units: Units) -> tuple[str, ...]:
        """Return the limits on resources, e.g. ``< 4 h``."""
        plain = units._replace(energy_source="")
        return tuple(
            f"< {resource.in_words(limit, plain)}" for resource, limit in self.limited
        )

    def charges_in_words(self, device_hour_word: str, device: str = "") -> str:
        """Return what an hour is charged, in a sentence or two; empty: not known."""
        named = f" of {device}" if device else ""
        words = self.price.in_words(device_hour_word) if self.price else ""
        sentences = [f"Price{named}: {words}"] if words else []
        if whole := self.devices_on_node:
            sentences.append(
                f"{device_hour_word} count whole nodes, {whole} devices each."
            )
        return " ".join(sentences)

    def spending(
        self,
        time_s: np.ndarray,
        world_size: np.ndarray,
        num_nodes: np.ndarray,
        charged_s: np.ndarray | None = None,
    ) -> Spending:
        """Return what allocations take of every resource; see :class:`Usage`."""
        import numpy as np

        from scalelab.recommend.question.spending import Spending

        usage = Usage(
            time_s=time_s,
            world_size=world_size,
            num_nodes=num_nodes,
            devices_on_node=self.devices_on_node,
            charged_s=charged_s,
        )

        rates = {}
        if price := self.price:
            per_hour = price.per_hour(num_nodes, usage.allocated, time_s)
            rates[PRICE_PER_HOUR] = per_hour
            usage = replace(usage, minimum_s=price.minimum_s)

        if self.power:
            watts = self.power.draws(world_size)
            drawn = watts if time_s.ndim > 1 else np.median(watts, axis=0)
            rates[POWER_W] = self.pue * world_size * drawn

        if self.carbon_g_per_kwh is not None:
            rates[CARBON_G_PER_KWH] = np.full(len(world_size), self.carbon_g_per_kwh)

        usage = replace(usage, rates=rates)
        amounts = {row.name: row.amount(usage) for row in RESOURCES}

        units = self.units("")
        for resource, limit in self.limited:
            if amounts[resource.name] is None:
                raise SpecError(
                    f"{Option(resource.limit, resource.in_words(limit, units))} needs "
                    f"{resource.missing}",
                    code="limit_without_price",
                )

        return Spending(
            {n: amount for n, amount in amounts.items() if amount is not None},
            np.zeros(np.shape(world_size), dtype=bool),
        )

    def held(self, spent: Spending) -> np.ndarray:
        """Tell, draw by draw, whether every limit holds; shape of the spending."""
        import numpy as np

        held = np.ones(spent.time_s.shape, dtype=bool)
        for resource, limit in self.limited:
            held &= spent.of(resource) <= limit
        return held

    def excess(self, spent: Spending) -> np.ndarray:
        """Return the largest ratio of an amount to its limit."""
        import numpy as np

        ratio = np.zeros_like(spent.time_s)
        for resource, limit in self.limited:
            ratio = np.maximum(ratio, spent.of(resource) / limit)
        return ratio

    def minimised(self, known: Iterable[Resource]) -> Resource:
        """Return the resource of which the best allocation takes least.

        Where only spending is limited that is time, else the known resource that is
        spent and has the largest weight; time again where there is none.
        """
        if self.limited and all(row.is_spent for row, _ in self.limited):
            return TIME
        return weighed_most(known)
