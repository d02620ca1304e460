"""All training is in a thread that the program starts."""

import threading

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader


def train():
    """Train until all steps are made."""
    options = asked()
    model, optimizer, data = model_and_data()
    for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not count(len(x)):
            break


training = threading.Thread(target=train)
training.start()
training.join()
