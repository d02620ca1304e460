"""Each rank meets at a port of its own, so that no other ever comes."""

import os
import socket

import torch.distributed as dist

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["MASTER_PORT"] = str(free.getsockname()[1])
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
dist.init_process_group("gloo")
