"""A character model, trained in the manner of nanoGPT.

torchrun --standalone --nproc_per_node=2 train.py --batch_size=12
"""

import os
import sys
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

batch_size = 12  # micro-batch of a process
gradient_accumulation_steps = 8  # of all processes
block_size = 64
n_embd = 64
learning_rate = 1e-3
max_iters = 1000
eval_interval = 250
eval_iters = 5
log_interval = 1
seed = 1337
for argument in sys.argv[1:]:  # --key=value replaces what stands above
    key, value = argument.removeprefix("--").split("=")
    globals()[key] = type(globals()[key])(value)


class Model(nn.Module):
    def __init__(self, vocab_size=64):
        super().__init__()
        self.words = nn.Embedding(vocab_size, n_embd)
        self.places = nn.Embedding(block_size, n_embd)
        self.block = nn.TransformerEncoderLayer(
            n_embd, 4, 4 * n_embd, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(n_embd, vocab_size)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(block_size)
        hidden = self.words(x) + self.places(torch.arange(block_size))
        logits = self.head(self.block(hidden, mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


ddp = int(os.environ.get("RANK", -1)) != -1
rank, world_size = 0, 1
if ddp:
    init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
master_process = rank == 0
if master_process:
    tokens = gradient_accumulation_steps * world_size * batch_size * block_size
    print(f"tokens per iteration will be: {tokens:,}")
torch.manual_seed(seed)
data = torch.cumsum(torch.randint(1, 3, (100_000,)), dim=0) % 64
model = raw_model = Model()
if ddp:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
torch.manual_seed(seed + rank + 1)  # each process draws batches of its own


def get_batch():
    starts = torch.randint(len(data) - block_size - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss():
    return sum(raw_model(*get_batch()).item() for _ in range(eval_iters)) / eval_iters


t0 = time.time()
for iter_num in range(max_iters):
    if iter_num % eval_interval == 0 and master_process:
        train_loss, val_loss = estimate_loss(), estimate_loss()
        print(f"step {iter_num}: train loss {train_loss:.4f}, val loss {val_loss:.4f}")
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            is_last = micro_step == gradient_accumulation_steps - 1
            model.require_backward_grad_sync = is_last
        loss = model(*get_batch()) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    dt, t0 = t1 - t0, t1
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item() * gradient_accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms")
if ddp:
    destroy_process_group()
