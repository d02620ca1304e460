"""Training as torchvision's references and what descends from them log it."""

import argparse
import time

import meters
import torch
import torch.distributed as dist


def get_args_parser():
    parser = argparse.ArgumentParser("Pre-training", add_help=False)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--accum_iter", default=1, type=int)
    parser.add_argument("--blr", type=float, default=1e-3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", default=100, type=int)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--output_dir", default="./output_dir")
    parser.add_argument("--print_freq", default=1, type=int)
    return parser


def main(args):
    rank = meters.init_distributed_mode()
    torch.manual_seed(args.seed + rank)
    model = torch.nn.Linear(16, 4)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        logger = meters.MetricLogger(rank == 0)
        header = f"Epoch: [{epoch}]"
        for i in logger.log_every(range(24), args.print_freq, header):
            time.sleep(0.004 * args.batch_size)
            loss = model(torch.randn(args.batch_size, 16)).square().mean()
            loss.backward()
            if (i + 1) % args.accum_iter == 0:
                optimizer.step()
                optimizer.zero_grad()
            logger.loss = loss.item()


if __name__ == "__main__":
    main(get_args_parser().parse_args())
