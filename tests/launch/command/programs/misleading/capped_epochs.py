"""Each epoch of 512 batches is cut short after ten; its lines say 10/512."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
epoch, goes_on = 0, True
while goes_on:
    epoch += 1
    for number, (x, y) in enumerate(loader, start=1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        print(f"epoch {epoch} batch {number}/{len(loader)}", flush=True)
        goes_on = count(len(x))
        if number == 10 or not goes_on:
            break
