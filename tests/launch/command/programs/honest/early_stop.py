"""An epoch of 512 batches ends after 40 of them, as it was asked to."""

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
    print(f"batch {number}/{len(loader)}", flush=True)
    if not count(len(x)):
        break
