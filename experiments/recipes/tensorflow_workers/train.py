"""Train a small network by a custom loop on TensorFlow's workers.

TF_CONFIG=... python train.py --batch-size 256
"""

import argparse

import numpy as np
import tensorflow as tf


def make_dataset(batch_size, seed):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((8192, 256), dtype=np.float32)
    labels = (features @ rng.standard_normal((256, 10))).argmax(axis=1)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    dataset = dataset.shuffle(8192, seed=seed).repeat()
    return dataset.batch(batch_size, drop_remainder=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256, help="of all workers")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any operation
    is_first = strategy.cluster_resolver.task_id in (0, None)
    tf.random.set_seed(args.seed)
    batches = strategy.experimental_distribute_dataset(
        make_dataset(args.batch_size, args.seed)
    )
    with strategy.scope():
        shapes = ((256, 1024), (1024, 1024), (1024, 10))
        weights = [
            tf.Variable(tf.random.stateless_normal((m, n), [args.seed, n]) * 0.05)
            for m, n in shapes
        ]

    def loss_and_step(features, labels):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(features @ weights[0])
            logits = tf.nn.relu(hidden @ weights[1]) @ weights[2]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / args.batch_size
        gradients = tape.gradient(loss, weights)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(args.lr * gradient)
        return loss

    @tf.function
    def train_step(features, labels):
        losses = strategy.run(loss_and_step, args=(features, labels))
        return strategy.reduce("sum", losses, axis=None)

    for step, (features, labels) in enumerate(batches, 1):
        loss = train_step(features, labels)
        if is_first:
            samples = step * args.batch_size
            print(f"step {step} samples {samples} loss {loss:.4f}", flush=True)
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
