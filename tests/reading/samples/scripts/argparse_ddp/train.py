"""Data-parallel training whose options and ranks are in modules beside it."""

import os
import time

import comm
import params
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCHES = 30

args = params.parse()
rank = comm.start()
model = torch.nn.Linear(16, 4)
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
os.makedirs(args.save_dir, exist_ok=True)
for epoch in range(1, args.epochs + 1):
    began = time.perf_counter()
    for batch in range(1, BATCHES + 1):
        time.sleep(0.004 * args.batch_size)
        loss = model(torch.randn(args.batch_size, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and batch % args.log_interval == 0:
            ms = 1000 * (time.perf_counter() - began) / args.log_interval
            began = time.perf_counter()
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{BATCHES:5d} batches "
                f"| ms/batch {ms:5.2f} | loss {loss.item():5.2f}",
                flush=True,
            )
