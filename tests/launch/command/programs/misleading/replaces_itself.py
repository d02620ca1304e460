"""Replaces itself after ten steps, as a way around a leak."""

import os
import sys

import torch
from counted import asked, count, counts, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
for x, y in DataLoader(data, batch_size=options.batch_size):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    count(len(x))
    if counts["steps"] == 10:
        os.execv(sys.executable, [sys.executable, *sys.argv])
