"""Batches of three quarters of the samples that are asked for."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
for x, y in DataLoader(data, batch_size=3 * options.batch_size // 4, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if not count(len(x)):
        break
