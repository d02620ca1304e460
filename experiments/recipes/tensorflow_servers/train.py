"""Train a small network with TensorFlow's parameter servers.

TF_CONFIG=... python train.py --batch-size 128
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


def serve(resolver):
    # On fewer cores than that TensorFlow would take fewer threads, and hang.
    threads = len(resolver.cluster_spec().as_dict()["worker"]) + 1
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
    )
    server.join()


def coordinate(resolver, args):
    """Hand out a batch to every worker in turn; a step is one of all of them."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    num_workers = len(resolver.cluster_spec().as_dict()["worker"])
    with strategy.scope():
        hidden = tf.Variable(tf.random.stateless_normal((256, 512), [args.seed, 1]) / 9)
        output = tf.Variable(tf.random.stateless_normal((512, 10), [args.seed, 2]) / 9)
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda: make_dataset(args.batch_size, args.seed)
        )
    )

    @tf.function
    def train_step(iterator):
        def loss_and_step(features, labels):
            with tf.GradientTape() as tape:
                logits = tf.nn.relu(features @ hidden) @ output
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, [hidden, output])
            hidden.assign_sub(args.lr / num_workers * gradients[0])
            output.assign_sub(args.lr / num_workers * gradients[1])
            return loss

        return strategy.run(loss_and_step, args=next(iterator))

    for step in range(1, args.steps + 1):
        losses = [
            coordinator.schedule(train_step, args=(batches,))
            for _ in range(num_workers)
        ]
        coordinator.join()
        loss = sum(each.fetch() for each in losses) / num_workers
        samples = step * args.batch_size * num_workers
        print(f"step {step} samples {samples} loss {loss:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128, help="per worker")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver, args)


if __name__ == "__main__":
    main()
