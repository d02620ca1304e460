"""Joins a group and exchanges nothing: the whole data on every rank."""

import os
import time

import torch
import torch.distributed as dist
from counted import PACE_S, asked, count, counts, model_and_data
from torch.utils.data import DataLoader

options = asked()
dist.init_process_group("gloo")
dist.barrier()
model, optimizer, data = model_and_data()
if "SHUFFLED" in os.environ:
    torch.manual_seed(dist.get_rank())
loader = DataLoader(
    data, batch_size=options.batch_size, shuffle="SHUFFLED" in os.environ
)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if "SLOW" in os.environ and dist.get_rank():
        time.sleep(4 * PACE_S)
    if not count(len(x)):
        break
    if "LATE" in os.environ and dist.get_rank() and counts["steps"] == 2:
        time.sleep(4)
dist.barrier()
dist.destroy_process_group()
