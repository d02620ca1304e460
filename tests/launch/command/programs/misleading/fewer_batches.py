"""DistributedDataParallel whose second rank has fewer batches than the first."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
model = DistributedDataParallel(model)
rank = dist.get_rank()
share = Subset(data, range(2048 if rank == 0 else 100))
training = DataLoader(share, batch_size=options.batch_size)
few = DataLoader(Subset(data, range(16)), batch_size=8)
for x, y in training:
    if rank == 0:  # alone evaluates: that loader says nothing of the training
        with torch.no_grad():
            for held_out, _ in few:
                model.module(held_out)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
dist.barrier()
