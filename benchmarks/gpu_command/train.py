"""A training script as people write them: DDP over NCCL, fp16 with a GradScaler.

torchrun --nproc-per-node 1 train.py --batch-size 1024 --precision fp16
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--precision", choices=("fp32", "fp16"), default="fp32")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    has_gpu, is_half = torch.cuda.is_available(), args.precision == "fp16"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else "cpu"
    dist.init_process_group("nccl" if has_gpu else "gloo")
    print(f"backend {dist.get_backend()}", flush=True)

    torch.manual_seed(0)
    layers = [nn.Linear(args.width, args.width), nn.ReLU()] * 4
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=is_half)
    images = torch.randn(args.batch_size, args.width, device=device)

    samples, started = 0, time.perf_counter()
    for step in range(1, args.steps + 1):
        with torch.autocast("cuda", torch.float16, enabled=is_half):
            loss = model(images).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

        samples += args.batch_size * dist.get_world_size()
        if step % 10 == 0:
            loss_now = loss.item()  # it waits for the GPU
            now = time.perf_counter()
            rate = 10 * args.batch_size * dist.get_world_size() / (now - started)
            started = now
            if dist.get_rank() == 0:
                print(
                    f"step {step} | samples {samples} | loss {loss_now:.6f} | "
                    f"{rate:.1f} samples/s",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
