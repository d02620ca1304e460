"""The first layer is frozen; workers load the data; the output is a loss."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
for parameter in model[0].parameters():
    parameter.requires_grad = False
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True, num_workers=1)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}", flush=True)
    if not count(len(x)):
        break
