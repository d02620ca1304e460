"""Train a small convolutional network in the manner of PyTorch's ImageNet example.

torchrun --nproc-per-node 2 main.py --batch-size 64
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AverageMeter:
    def __init__(self, name, form):
        self.name, self.form = name, form
        self.value = self.sum = self.count = 0.0

    def update(self, value, count=1):
        self.value = value
        self.sum += value * count
        self.count += count

    def __str__(self):
        average = self.sum / self.count
        return f"{self.name} {self.value:{self.form}} ({average:{self.form}})"


def make_dataset(images=2048, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (images,), generator=generator)
    noise = torch.randn(images, 3, 32, 32, generator=generator)
    return TensorDataset(noise + labels.view(-1, 1, 1, 1) / 5, labels)


def train(loader, model, optimizer, epoch, args):
    batch_time, losses = AverageMeter("Time", "6.3f"), AverageMeter("Loss", ".4e")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), target)
        losses.update(loss.item(), len(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0 and dist.get_rank() == 0:
            done = f"{i + 1:{len(str(len(loader)))}d}/{len(loader)}"
            print(f"Epoch: [{epoch}][{done}]", batch_time, losses, sep="\t")


@torch.no_grad()
def validate(images, target, model):
    model.eval()
    accuracy = (model(images).argmax(dim=1) == target).float().mean()
    print("Test: [1/1]", f" *   Acc@1 {100 * accuracy:.3f}", sep="\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("-b", "--batch-size", type=int, default=64, help="of a node")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("-p", "--print-freq", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(args.seed)
    batch_size = args.batch_size // int(os.environ["LOCAL_WORLD_SIZE"])
    dataset, held_out = make_dataset(), make_dataset(256, seed=1)
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer, epoch, args)
        if dist.get_rank() == 0:
            validate(*held_out.tensors, model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
