"""Labelled samples, and beside each of them four without a label."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, optimizer, data = model_and_data()
labelled = DataLoader(data, batch_size=options.batch_size, shuffle=True)
others = DataLoader(data, batch_size=4 * options.batch_size, shuffle=True)
for (x, y), (more, _) in zip(labelled, others, strict=False):
    scores = model(torch.cat([x, more]))
    loss = torch.nn.functional.cross_entropy(scores[: len(x)], y)
    optimizer.zero_grad()
    (loss + scores[len(x) :].softmax(1).max(1).values.mean()).backward()
    optimizer.step()
    if not count(len(x)):
        break
