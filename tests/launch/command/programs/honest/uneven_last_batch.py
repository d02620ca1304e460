"""Epochs of five batches, of which the last has three samples."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data(num_samples=4 * options.batch_size + 3)
goes_on = True
while goes_on:
    for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        goes_on = count(len(x))
        if not goes_on:
            break
