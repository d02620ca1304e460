"""ResNet on CIFAR-10 with PyTorch's DistributedDataParallel.

torchrun --nproc-per-node 2 train_torch.py --batch-size 32
"""

import cifar
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - before

    def forward(self, x):
        shortcut = x[:, :, :: self.stride, :: self.stride]
        half = self.added // 2
        shortcut = F.pad(shortcut, (0, 0, 0, 0, half, self.added - half))
        x = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(x + shortcut)


class ResNet(nn.Module):
    def __init__(self, depth, weights):
        super().__init__()
        first = cifar.WIDTHS[0]
        self.stem = nn.Conv2d(3, first, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(first)
        self.blocks = nn.Sequential(*(Block(*each) for each in cifar.blocks(depth)))
        self.head = nn.Linear(cifar.WIDTHS[-1], cifar.CLASSES)
        nn.init.zeros_(self.head.bias)
        layers = [m for m in self.modules() if isinstance(m, nn.Conv2d)]
        for layer, kernel in zip(layers, weights[:-1], strict=True):
            layer.weight.data = torch.tensor(kernel.transpose(3, 2, 0, 1).copy())
        self.head.weight.data = torch.tensor(weights[-1].T.copy())

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def as_tensor(pictures):
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def main():
    options = cifar.read_options()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    weights = cifar.initial_weights(options.depth, options.seed)
    model = ResNet(options.depth, weights).to(device)
    ranks = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=options.lr,
        momentum=cifar.MOMENTUM,
        weight_decay=cifar.WEIGHT_DECAY,
    )

    def scores_of(pictures):
        model.eval()
        with torch.no_grad():
            scores = model(as_tensor(pictures).to(device)).cpu().numpy()
        model.train()
        return scores

    course = cifar.Course(options, dist.get_rank(), dist.get_world_size())
    for step, rate, pictures, labels in course.steps():
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        targets = torch.from_numpy(labels).long().to(device)
        loss = F.cross_entropy(ranks(as_tensor(pictures).to(device)), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        course.report(step, mean.item(), scores_of)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
