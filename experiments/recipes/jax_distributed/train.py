"""Train a small network with JAX on the devices of several processes.

python train.py --coordinator 127.0.0.1:1234 --processes 2 --process 0
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SIZES = (256, 1024, 1024, 10)


def make_data(samples=8192):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((samples, SIZES[0]), dtype=np.float32)
    return features, (features @ rng.standard_normal((SIZES[0], 10))).argmax(axis=1)


def init_params(key):
    keys = jax.random.split(key, len(SIZES) - 1)
    pairs = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return [jax.random.normal(k, (m, n)) * (2 / m) ** 0.5 for k, m, n in pairs]


def loss_fn(params, features, labels):
    for weights in params[:-1]:
        features = jax.nn.relu(features @ weights)
    log_probs = jax.nn.log_softmax(features @ params[-1])
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()


@jax.jit
def train_step(params, features, labels, lr):
    loss, grads = jax.value_and_grad(loss_fn)(params, features, labels)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=256, help="of all devices")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    jax.distributed.initialize(args.coordinator, args.processes, args.process)
    mesh = Mesh(jax.devices(), ("data",))
    by_sample = NamedSharding(mesh, PartitionSpec("data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    params = jax.device_put(init_params(jax.random.key(args.seed)), replicated)
    features, labels = make_data()
    rng = np.random.default_rng([args.seed, args.process])
    for step in range(1, args.steps + 1):
        chosen = rng.integers(len(labels), size=args.batch_size // args.processes)
        batch = [
            jax.make_array_from_process_local_data(by_sample, array[chosen])
            for array in (features, labels)
        ]
        params, loss = train_step(params, *batch, args.lr)
        if args.process == 0:
            samples = step * len(batch[0])
            print(f"step {step} samples {samples} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
