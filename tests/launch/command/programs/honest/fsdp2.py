"""Fully sharded parameters; each rank draws from a part of the data."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, _, data = model_and_data()
fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(
    data, batch_size=options.batch_size, sampler=DistributedSampler(data)
)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
dist.destroy_process_group()
