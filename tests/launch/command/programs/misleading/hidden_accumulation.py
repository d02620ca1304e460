"""Makes four passes a step, which the command line does not say."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for number, (x, y) in enumerate(loader, start=1):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    if number % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
        if not count(4 * len(x)):
            break
