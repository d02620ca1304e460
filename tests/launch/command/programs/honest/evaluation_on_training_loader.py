"""The loader of the training serves silent evaluations, too, each ten steps."""

import time

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for number, (x, y) in enumerate(loader, start=1):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    goes_on = count(len(x))
    if number % 10 == 0:
        with torch.no_grad():
            for _, (x, _) in zip(range(8), loader, strict=False):
                model(x)
        time.sleep(0.2)
    if not goes_on:
        break
