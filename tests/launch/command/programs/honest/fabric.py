"""Lightning Fabric, which wraps the model, the optimizer and the loader."""

import os

import torch
from counted import asked, count, model_and_data
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

options = asked()
ranks = int(os.environ.get("WORLD_SIZE", 1))
strategy = "ddp" if ranks > 1 else "auto"
fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
fabric.launch()
model, optimizer, data = model_and_data()
model, optimizer = fabric.setup(model, optimizer)
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for x, y in fabric.setup_dataloaders(loader):
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
    optimizer.step()
    if not count(len(x)):
        break
