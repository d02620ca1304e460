"""The first rank evaluates before the training, so its loaders have other numbers."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
model = DistributedDataParallel(model)
if dist.get_rank() == 0:
    with torch.no_grad():
        for x, _ in DataLoader(Subset(data, range(64)), batch_size=16):
            model.module(x)
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
