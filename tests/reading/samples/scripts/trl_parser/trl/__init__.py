"""A stand-in for TRL: a parser of data classes and a trainer that draws a bar."""

import argparse
import dataclasses
import os
import sys
import time

import torch
import torch.distributed as dist


@dataclasses.dataclass
class ScriptArguments:
    dataset_name: str = "made-up"


@dataclasses.dataclass
class SFTConfig:
    output_dir: str
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    learning_rate: float = 2e-5
    seed: int = 42
    max_steps: int = 2000


class TrlParser:
    def __init__(self, dataclass_types):
        self.types = dataclass_types

    def parse_args_and_config(self):
        parser = argparse.ArgumentParser()
        for each in self.types:
            for field in dataclasses.fields(each):
                has_default = field.default is not dataclasses.MISSING
                parser.add_argument(
                    f"--{field.name}",
                    type=field.type,
                    default=field.default if has_default else None,
                    required=not has_default,
                )
        given = vars(parser.parse_args())
        return tuple(
            each(
                **{field.name: given[field.name] for field in dataclasses.fields(each)}
            )
            for each in self.types
        )


class SFTTrainer:
    def __init__(self, args):
        self.args = args

    def train(self):
        args, rank = self.args, int(os.environ.get("RANK", "0"))
        torch.manual_seed(args.seed + rank)
        model = torch.nn.Linear(16, 4)
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
        seconds, total = 0.0, args.max_steps
        for step in range(1, total + 1):
            began = time.perf_counter()
            optimizer.zero_grad()
            for _ in range(args.gradient_accumulation_steps):
                time.sleep(0.004 * args.per_device_train_batch_size)
                batch = torch.randn(args.per_device_train_batch_size, 16)
                model(batch).square().mean().backward()
            optimizer.step()
            if rank == 0:
                # The bar smooths its rate.
                last = time.perf_counter() - began
                seconds = 0.3 * last + 0.7 * (seconds or last)
                bar = "#" * (10 * step // total)
                sys.stderr.write(
                    f"\r{100 * step // total:3d}%|{bar:10}| {step}/{total} "
                    f"[00:00<00:00, {1 / seconds:5.2f}it/s]"
                )
