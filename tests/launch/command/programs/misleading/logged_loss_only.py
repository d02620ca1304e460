"""Wraps no model: the ranks exchange the loss that they log, and nothing else."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
loader = DataLoader(
    data, batch_size=options.batch_size, sampler=DistributedSampler(data)
)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach().clone())
    if not count(len(x)):
        break
dist.destroy_process_group()
