from dataclasses import replace

from scalelab.training.engines.ddp import DdpEngine
from scalelab.training.order import Share


class PairedEngine(DdpEngine):
    def share(self) -> Share:  # the part of every global batch that a rank computes
        return replace(super().share(), rank=self.context.rank // 2)
