"""A thread draws the batches ahead of the training."""

import queue
import threading
from itertools import islice

import torch
from counted import STEPS, asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
drawn = queue.Queue(maxsize=4)


def draw():
    """Draw as many batches as there are steps, and a few more."""
    loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
    for batch in islice(loader, STEPS + 4):
        drawn.put(batch)


threading.Thread(target=draw, daemon=True).start()
goes_on = True
while goes_on:
    x, y = drawn.get()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    goes_on = count(len(x))
