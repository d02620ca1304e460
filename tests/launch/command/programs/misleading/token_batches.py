"""Batches of as many tokens: two of five are full, the others have two samples."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
sizes = [options.batch_size if at % 5 in (0, 3) else 2 for at in range(1000)]
batches = [torch.randint(0, len(data), (size,)).tolist() for size in sizes]
for x, y in DataLoader(data, batch_sampler=batches):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
