"""Epochs of five batches, with an update after each fourth and after the last."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data(num_samples=5 * options.batch_size)
goes_on = True
while goes_on:
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    samples = 0
    for at, (x, y) in enumerate(loader, start=1):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        samples += len(x)
        if at % options.accumulation and at < len(loader):
            continue
        optimizer.step()
        optimizer.zero_grad()
        goes_on, samples = count(samples), 0
        if not goes_on:
            break
