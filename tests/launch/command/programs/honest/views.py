"""Two views of each sample enter the model together, in parts of a batch."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
for x, _ in DataLoader(data, batch_size=options.batch_size, shuffle=True):
    optimizer.zero_grad()
    for part in x.chunk(4):
        views = torch.cat([part, part + 0.1 * torch.randn_like(part)])
        model(views).pow(2).mean().backward()
    optimizer.step()
    if not count(len(x)):
        break
