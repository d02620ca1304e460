"""Train a small network with DeepSpeed's ZeRO.

torchrun --nproc-per-node 2 train.py --micro-batch 128
"""

import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset


def make_dataset():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8192, 256, generator=generator)
    labels = (features @ torch.randn(256, 10, generator=generator)).argmax(dim=1)
    return TensorDataset(features, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, default=128, help="per rank")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=args.lr),
        training_data=make_dataset(),
        config={
            "train_micro_batch_size_per_gpu": args.micro_batch,
            "gradient_accumulation_steps": args.accumulate,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    for _ in range(args.epochs):
        for features, labels in loader:
            features, labels = features.to(engine.device), labels.to(engine.device)
            loss = nn.functional.cross_entropy(engine(features), labels)
            at_boundary = engine.is_gradient_accumulation_boundary()
            engine.backward(loss)
            engine.step()
            if at_boundary and os.environ["RANK"] == "0":
                print(
                    f"step {engine.global_steps} samples {engine.global_samples} "
                    f"loss {loss.item():.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
