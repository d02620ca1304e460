from scalelab.errors import SpecError
from scalelab.kinds.strategy import Strategy, TrialOptions


class Paired(Strategy):
    name = "paired"

    def data_parallel_size(self, world_size: int, options: TrialOptions) -> int:
        if world_size % 2:
            raise SpecError(
                "parallelism=paired needs an even number of devices, not "
                f"{world_size}. Use 2, 4, ..."
            )
        return world_size // 2
