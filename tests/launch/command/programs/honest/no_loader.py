"""In the manner of nanoGPT: batches are cut out of one array, without a loader."""

import torch
from counted import asked, count, model_and_data

options = asked()
model, optimizer, data = model_and_data()
x, y = data.tensors
goes_on = True
while goes_on:
    for _ in range(options.accumulation):
        chosen = torch.randint(0, len(x), (options.batch_size,))
        loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        (loss / options.accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
    goes_on = count(options.batch_size * options.accumulation)
