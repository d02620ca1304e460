"""Its batch is 32, whatever the command line says."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

asked()
model, optimizer, data = model_and_data()
for x, y in DataLoader(data, batch_size=32):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
