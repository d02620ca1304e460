"""Train a small network with Accelerate, in the manner of its examples.

accelerate launch train.py --batch_size 32 --gradient_accumulation_steps 2
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32, help="per process")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--max_steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def get_dataloader(batch_size):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8192, 256, generator=generator)
    labels = (features @ torch.randn(256, 10, generator=generator)).argmax(dim=1)
    dataset = TensorDataset(features, labels)
    return DataLoader(dataset, batch_size, shuffle=True, drop_last=True)


def main():
    args = parse_args()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    accelerator.print(accelerator.state)
    set_seed(args.seed)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    model, optimizer, dataloader = accelerator.prepare(
        model, optimizer, get_dataloader(args.batch_size)
    )
    progress_bar = tqdm(
        range(args.max_steps), disable=not accelerator.is_local_main_process
    )
    completed_steps = 0
    while completed_steps < args.max_steps:
        for features, labels in dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(features), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1
                progress_bar.update(1)
                progress_bar.set_postfix(loss=loss.item())
            if completed_steps >= args.max_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
