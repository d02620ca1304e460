"""DDP in the manner of PyTorch's MNIST example: prints the samples of one rank."""

import torch
import torch.distributed as dist
from counted import asked, count, model_and_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

options = asked()
dist.init_process_group("gloo")
model, optimizer, data = model_and_data()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
model = DistributedDataParallel(model)
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0 and number % 2 == 0:
        done, share = number * len(x), number / len(loader)
        print(
            f"Train Epoch: 1 [{done}/{len(data)} ({share:.0%})]\tLoss: {loss:.6f}",
            flush=True,
        )
    if not count(len(x)):
        break
dist.destroy_process_group()
