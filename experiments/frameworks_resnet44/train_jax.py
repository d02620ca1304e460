"""ResNet on CIFAR-10 with JAX, one process per device.

python train_jax.py --coordinator 127.0.0.1:1234 --processes 2 --process 0
"""

from functools import partial

import cifar
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def convolved(x, kernel, stride=1):
    sides = ((1, 1), (1, 1))
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def forward(params, pictures, depth, means_and_variances=None):
    """Return the scores of the classes, and the statistics that were normalised by.

    Without means and variances they are those of the batch.
    """
    kernels, norms = iter(params["kernels"]), iter(params["norms"])
    given = iter(means_and_variances) if means_and_variances is not None else None
    seen = []

    def normalised(x):
        scale, offset = next(norms)
        if given is None:
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        else:
            mean, variance = next(given)
        seen.append((mean, variance))
        x = (x - mean) * jax.lax.rsqrt(variance + cifar.NORM_EPSILON)
        return x * scale + offset

    x = jax.nn.relu(normalised(convolved(pictures, next(kernels))))
    for before, width, stride in cifar.blocks(depth):
        half = (width - before) // 2
        channels = (half, width - before - half)
        shortcut = x[:, ::stride, ::stride, :]
        shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), channels))
        x = jax.nn.relu(normalised(convolved(x, next(kernels), stride)))
        x = normalised(convolved(x, next(kernels)))
        x = jax.nn.relu(x + shortcut)
    return x.mean((1, 2)) @ params["head"] + params["bias"], seen


def initial_params(depth, seed):
    *kernels, head = cifar.initial_weights(depth, seed)
    norms = [(np.ones(w, "f"), np.zeros(w, "f")) for w in cifar.norm_widths(depth)]
    bias = np.zeros(cifar.CLASSES, "f")
    return {"kernels": kernels, "norms": norms, "head": head, "bias": bias}


def main():
    options = cifar.read_options()
    jax.distributed.initialize(options.coordinator, options.processes, options.process)
    mesh = Mesh(jax.devices(), ("data",))
    by_sample = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = PartitionSpec()

    def loss_of(params, pictures, labels):
        scores, seen = forward(params, pictures, options.depth)
        log_shares = jax.nn.log_softmax(scores)
        losses = -jnp.take_along_axis(log_shares, labels[:, None], axis=1)
        return losses.mean(), seen

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(everywhere, PartitionSpec("data"), PartitionSpec("data")),
        out_specs=everywhere,
        check_vma=False,
    )
    def gradients_of(params, pictures, labels):
        found = jax.value_and_grad(loss_of, has_aux=True)(params, pictures, labels)
        return jax.lax.pmean(found, "data")

    @partial(jax.jit, donate_argnums=0)
    def train_step(state, pictures, labels, rate):
        params, velocity, averages = state
        (loss, seen), grads = gradients_of(params, pictures, labels)
        grads = jax.tree.map(lambda g, p: g + cifar.WEIGHT_DECAY * p, grads, params)
        velocity = jax.tree.map(lambda v, g: cifar.MOMENTUM * v + g, velocity, grads)
        params = jax.tree.map(lambda p, v: p - rate * v, params, velocity)
        kept = cifar.NORM_MOMENTUM
        averages = jax.tree.map(lambda a, s: kept * a + (1 - kept) * s, averages, seen)
        return (params, velocity, averages), loss

    @jax.jit
    def scores(params, averages, pictures):
        return forward(params, pictures, options.depth, averages)[0]

    params = initial_params(options.depth, options.seed)
    widths = cifar.norm_widths(options.depth)
    averages = [(np.zeros(w, "f"), np.ones(w, "f")) for w in widths]
    velocity = jax.tree.map(np.zeros_like, params)
    state = jax.device_put(
        (params, velocity, averages), NamedSharding(mesh, everywhere)
    )
    course = cifar.Course(options, options.process, options.processes)
    for step, rate, *batch in course.steps():
        pictures, labels = (
            jax.make_array_from_process_local_data(by_sample, each) for each in batch
        )
        state, loss = train_step(state, pictures, labels, np.float32(rate))
        # The state is whole on each process, so one of them can evaluate it alone.
        params, _, averages = state
        course.report(
            step,
            float(loss),
            lambda tested, of=(params, averages): scores(*jax.device_get(of), tested),
        )


if __name__ == "__main__":
    main()
