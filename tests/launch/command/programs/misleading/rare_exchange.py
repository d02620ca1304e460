"""The second rank is four times slower; they average their weights each 100 steps."""

import time

import torch
import torch.distributed as dist
from counted import PACE_S, asked, count, model_and_data
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
loader = DataLoader(
    data, batch_size=options.batch_size, sampler=DistributedSampler(data)
)
for number, (x, y) in enumerate(loader, start=1):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if dist.get_rank():
        time.sleep(3 * PACE_S)
    if number % 100 == 0:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
    if not count(len(x)):
        break
dist.barrier()
dist.destroy_process_group()
