"""Hugging Face's accelerate, which steps once for several passes."""

import torch
from accelerate import Accelerator
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulation)
model, optimizer, data = model_and_data()
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
samples, goes_on = 0, True
while goes_on:
    for x, y in loader:
        samples += len(x)
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            goes_on, samples = count(samples), 0
        if not goes_on:
            break
