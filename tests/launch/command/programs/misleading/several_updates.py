"""Four updates for each batch, as reinforcement learning makes them."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
goes_on = True
for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):
    for update in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        goes_on = count(0 if update else len(x))
    if not goes_on:
        break
