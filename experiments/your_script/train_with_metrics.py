"""The same script with three lines added: it reports every step as a line of JSON.

torchrun --nproc-per-node 2 train_with_metrics.py --batch-size 64 --lr 0.1
"""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a perceptron on digits.")
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--out", default=".")
    return parser.parse_args()


def build_loader(args: argparse.Namespace) -> DataLoader:
    images, labels = load_digits(return_X_y=True)
    dataset = TensorDataset(
        torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    )
    sampler = DistributedSampler(dataset, seed=args.seed, drop_last=True)
    return DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)


def main() -> None:
    args = parse_arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    loader = build_loader(args)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(64, args.hidden),
            nn.ReLU(),
            nn.Linear(args.hidden, args.hidden),
            nn.ReLU(),
            nn.Linear(args.hidden, 10),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = samples = micro_steps = 0
    metrics = open(os.environ.get("SCALELAB_METRICS", os.devnull), "a", buffering=1)
    started = time.perf_counter()
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            (loss / args.accumulate).backward()
            samples += len(images) * dist.get_world_size()
            micro_steps += 1
            if micro_steps % args.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            metrics.write(json.dumps({"step": step, "samples": samples}) + "\n")
            if step % args.log_interval == 0 and dist.get_rank() == 0:
                elapsed = time.perf_counter() - started
                print(
                    f"epoch {epoch:3d} | step {step:6d} | samples {samples:8d} | "
                    f"loss {loss.item():.4f} | {elapsed:.3f} s",
                    flush=True,
                )
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), os.path.join(args.out, "model.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
