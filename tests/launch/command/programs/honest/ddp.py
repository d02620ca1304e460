"""DistributedDataParallel with a sampler, an epoch after the other; prints nothing."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data(num_samples=192)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
model = DistributedDataParallel(model)
epoch, goes_on = 0, True
while goes_on:
    sampler.set_epoch(epoch)
    epoch += 1
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        goes_on = count(len(x))
        if not goes_on:
            break
dist.destroy_process_group()
