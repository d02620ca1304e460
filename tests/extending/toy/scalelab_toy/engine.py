"""The engine of the strategy; only ranks import it, and torch with it."""

from dataclasses import replace

from scalelab.training.engines.ddp import DdpEngine
from scalelab.training.order import Share


class PairedEngine(DdpEngine):
    """Trains as DDP does, on the samples of the rank's pair."""

    def share(self) -> Share:
        """Return the part of every global batch that this rank's pair computes."""
        return replace(super().share(), rank=self.context.rank // 2)
