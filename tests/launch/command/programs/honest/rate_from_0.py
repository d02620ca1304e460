"""The learning rate rises from 0: the first step changes nothing."""

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
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
model = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    schedule.step()
    if not count(len(x)):
        break
dist.destroy_process_group()
