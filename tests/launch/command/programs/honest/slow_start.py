"""Its first twenty steps take twelve times as long as the later ones."""

import time

import torch
from counted import PACE_S, asked, count, counts, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    if counts["steps"] < 20:
        time.sleep(12 * PACE_S)
    optimizer.step()
    print(f"step {counts['steps'] + 1}", flush=True)
    if not count(len(x)):
        break
