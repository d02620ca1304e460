import os

import torch.distributed as dist


def start():
    """Join the other ranks, if there are some."""
    if "RANK" not in os.environ:
        return 0
    dist.init_process_group("gloo")
    return dist.get_rank()
