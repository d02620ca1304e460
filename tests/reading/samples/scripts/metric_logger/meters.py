import os
import time

import torch.distributed as dist


def init_distributed_mode():
    if "RANK" not in os.environ:
        return 0
    dist.init_process_group("gloo")
    return dist.get_rank()


class MetricLogger:
    """Prints lines as torchvision's does."""

    def __init__(self, is_main):
        self.is_main = is_main
        self.loss = 0.0

    def log_every(self, iterable, print_freq, header):
        total, seconds = len(iterable), []
        end = time.perf_counter()
        for i, each in enumerate(iterable):
            waited = time.perf_counter() - end
            yield each
            seconds.append(time.perf_counter() - end)
            end = time.perf_counter()
            if self.is_main and (i % print_freq == 0 or i == total - 1):
                mean = sum(seconds) / len(seconds)  # of the epoch
                width = len(str(total))
                print(
                    f"{header}  [{i:{width}d}/{total}]  eta: 0:00:10  "
                    f"lr: 0.1000  loss: {self.loss:.4f} ({self.loss:.4f})  "
                    f"time: {seconds[-1]:.4f} ({mean:.4f})  data: {waited:.4f}",
                    flush=True,
                )
