"""What the scripts of all frameworks share: options, pictures, batches, rates, weights.

It knows numpy alone, so that each of them trains the same network on the same batches
from the same weights.
"""

import argparse
import math
import os
import shlex
import sys
from pathlib import Path

import numpy as np

RECORD = 1 + 3 * 32 * 32
PADDING = 4
MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32)
STD = np.array([0.2470, 0.2435, 0.2616], dtype=np.float32)
CLASSES = 10
WIDTHS = (16, 32, 64)
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
NORM_MOMENTUM, NORM_EPSILON = 0.9, 1e-5


def read_options():
    """Return the options of the variable OPTIONS, then those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/cifar10"))
    parser.add_argument("--pictures", type=int, default=50_000, help="to train on")
    parser.add_argument("--test-pictures", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--depth", type=int, default=44, help="6 n + 2 layers")
    parser.add_argument("--seed", type=int, default=0)
    # Only for programs that are not told by their environment:
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    shared = shlex.split(os.environ.get("OPTIONS", ""))
    return parser.parse_args([*shared, *sys.argv[1:]])


def _read(paths, count):
    records = np.concatenate([np.fromfile(path, dtype=np.uint8) for path in paths])
    records = records.reshape(-1, RECORD)[:count]
    pictures = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return pictures, records[:, 0].astype(np.int32)


def standardised(pictures):
    """Return uint8 pictures, shape (n, 32, 32, 3), as float32 numbers around 0."""
    return (pictures.astype(np.float32) / 255 - MEAN) / STD


def _augmented(pictures, uniform):
    """Return pictures moved by up to 4 pixels and maybe mirrored; uniform: (n, 3)."""
    padded = np.pad(pictures, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    moved = (uniform[:, :2] * (2 * PADDING + 1)).astype(int)
    cropped = [
        picture[row : row + 32, column : column + 32]
        for picture, (row, column) in zip(padded, moved, strict=True)
    ]
    mirrored = uniform[:, 2, None, None, None] >= 0.5
    return np.where(mirrored, np.flip(cropped, axis=2), cropped)


class Course:
    """The course of a training: the batches of one rank, rates, steps and reports."""

    def __init__(self, options, rank, world_size):
        self.options, self.rank, self.world_size = options, rank, world_size
        files = [options.data / f"data_batch_{number}.bin" for number in range(1, 6)]
        self._pictures, self._labels = _read(files, options.pictures)
        self._batch = options.batch_size * world_size
        self._steps_per_epoch = len(self._labels) // self._batch
        self._num_steps = options.epochs * self._steps_per_epoch

    def steps(self):
        """Yield step from 1, learning rate, and this rank's pictures and labels."""
        step = 0
        for epoch in range(self.options.epochs):
            rng = np.random.default_rng([self.options.seed, epoch])
            order = rng.permutation(len(self._labels))
            for start in range(0, self._steps_per_epoch * self._batch, self._batch):
                chosen = order[start : start + self._batch]
                uniform = rng.random((self._batch, 3))
                mine = slice(self.rank, None, self.world_size)
                pictures = _augmented(self._pictures[chosen[mine]], uniform[mine])
                step += 1
                yield (
                    step,
                    self._rate(step),
                    standardised(pictures),
                    self._labels[chosen[mine]],
                )

    def _rate(self, step):
        """Return the rate: a linear rise over a tenth of the steps, then a cosine."""
        rise = max(1, self._num_steps // 10)
        if step <= rise:
            return self.options.lr * step / rise
        done = (step - rise) / max(1, self._num_steps - rise)
        return self.options.lr * 0.5 * (1 + math.cos(math.pi * done))

    def report(self, step, loss, scores_of):
        """Print a step, and at the end of an epoch the accuracy, on rank 0.

        scores_of returns the scores of the classes for standardised pictures, as numpy.
        """
        if self.rank != 0:
            return
        print(f"step {step} samples {step * self._batch} loss {loss:.4f}", flush=True)
        if step % self._steps_per_epoch == 0:
            print("evaluating", flush=True)
            print(f"val_acc {self._accuracy(scores_of):.4f}", flush=True)

    def _accuracy(self, scores_of):
        file = self.options.data / "test_batch.bin"
        pictures, labels = _read([file], self.options.test_pictures)
        num_right, size = 0, min(256, len(labels))
        # Parts of one size: compilers translate each size anew.
        for start in range(0, len(labels) - size + 1, size):
            part = slice(start, start + size)
            found = np.asarray(scores_of(standardised(pictures[part]))).argmax(axis=1)
            num_right += int((found == labels[part]).sum())
        return num_right / (len(labels) // size * size)


def blocks(depth):
    """Return width in, width and stride of each residual block (He et al. 2016)."""
    found, before = [], WIDTHS[0]
    for width in WIDTHS:
        for _ in range((depth - 2) // 6):
            found.append((before, width, 1 if before == width else 2))
            before = width
    return found


def norm_widths(depth):
    """Return the channels of each batch normalisation, in the order of the layers."""
    return [WIDTHS[0], *(w for _, width, _ in blocks(depth) for w in (width, width))]


def initial_weights(depth, seed):
    """Return the first weights: kernels (height, width, in, out), then the last matrix.

    Kaiming's normal distribution over the inputs of each unit.
    """
    shapes = [(3, 3, 3, WIDTHS[0])]
    for before, width, _ in blocks(depth):
        shapes += [(3, 3, before, width), (3, 3, width, width)]
    shapes.append((WIDTHS[-1], CLASSES))
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[:-1]))).astype(
            np.float32
        )
        for shape in shapes
    ]
