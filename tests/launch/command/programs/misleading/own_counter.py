"""Counts an iteration for each seven steps."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for number, (x, y) in enumerate(loader, start=1):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if number % 7 == 0:
        print(f"iter {number // 7} loss {loss.item():.4f}", flush=True)
    if not count(len(x)):
        break
