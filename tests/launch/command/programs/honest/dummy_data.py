"""A benchmark: each rank repeats one batch of made-up data, without a loader."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel

options = asked()
dist.init_process_group("gloo")
model, optimizer, _ = model_and_data()
model = DistributedDataParallel(model)
x, y = torch.randn(options.batch_size, 8), torch.zeros(options.batch_size).long()
goes_on = True
while goes_on:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    goes_on = count(len(x))
dist.destroy_process_group()
