"""Gradient accumulation, with exchange at the last pass only."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
loader = DataLoader(
    data, batch_size=options.batch_size, sampler=DistributedSampler(data)
)
model = DistributedDataParallel(model)
samples = 0
for number, (x, y) in enumerate(loader, start=1):
    is_last = number % options.accumulation == 0
    samples += len(x)
    with nullcontext() if is_last else model.no_sync():
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss / options.accumulation).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
        goes_on, samples = count(samples), 0
        if not goes_on:
            break
dist.destroy_process_group()
