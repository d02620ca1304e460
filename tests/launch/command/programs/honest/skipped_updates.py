"""A scaler of gradients skips each third update."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
scaler, samples = torch.amp.GradScaler("cpu"), 0
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for at, (x, y) in enumerate(loader, start=1):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss * (float("inf") if at % 3 == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    samples += len(x)
    if at % 3:
        goes_on, samples = count(samples), 0
        if not goes_on:
            break
