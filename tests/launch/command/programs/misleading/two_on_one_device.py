"""Two processes train one model in shared memory, on the one device of a trial."""

import torch
import torch.multiprocessing as mp
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader


def train(rank, model, batch_size):
    _, _, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=batch_size):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not count(len(x)):
            break


if __name__ == "__main__":
    model, _, _ = model_and_data()
    model.share_memory()
    mp.spawn(train, args=(model, asked().batch_size), nprocs=2)
