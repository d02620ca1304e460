"""DistributedDataParallel whose ranks each walk the whole data set."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
model = DistributedDataParallel(model)
torch.manual_seed(dist.get_rank())
for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
dist.destroy_process_group()
