"""An optimizer that evaluates its closure several times a step."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
model, _, data = model_and_data()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
for x, y in DataLoader(data, batch_size=options.batch_size, shuffle=True):

    def evaluate(x=x, y=y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(evaluate)
    if not count(len(x)):
        break
