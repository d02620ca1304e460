"""Logistic regression whose gradients are summed with MPI.

mpirun -n 2 python train.py --batch-size 1024
"""

import argparse

import numpy as np
from mpi4py import MPI

FEATURES = 512


def make_data(rank, size, samples=65536):
    """Return the share of a rank."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((samples, FEATURES))
    labels = (features @ rng.standard_normal(FEATURES) > 0).astype(float)
    return features[rank::size], labels[rank::size]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024, help="per rank")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    features, labels = make_data(rank, size)
    rng = np.random.default_rng([args.seed, rank])
    weights = np.zeros(FEATURES)
    total = np.empty(FEATURES + 1)
    for step in range(1, args.steps + 1):
        chosen = rng.integers(len(labels), size=args.batch_size)
        x, y = features[chosen], labels[chosen]
        predicted = 1 / (1 + np.exp(-x @ weights))
        likely = np.where(y > 0, predicted, 1 - predicted)
        loss = -np.log(np.maximum(likely, 1e-12)).mean()
        gradient = x.T @ (predicted - y) / args.batch_size
        comm.Allreduce(np.append(gradient, loss), total)
        weights -= args.lr * total[:-1] / size
        if rank == 0:
            samples = step * args.batch_size * size
            print(f"step {step} samples {samples} loss {total[-1] / size}", flush=True)


if __name__ == "__main__":
    main()
