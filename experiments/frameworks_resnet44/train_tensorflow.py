"""ResNet on CIFAR-10 with a custom loop on TensorFlow's workers, one per device.

TF_CONFIG=... python train_tensorflow.py --batch-size 32
"""

import cifar
import numpy as np
import tensorflow as tf


def convolved(x, kernel, stride=1):
    sides = [[0, 0], [1, 1], [1, 1], [0, 0]]
    return tf.nn.conv2d(x, kernel, stride, sides)


class ResNet:
    """The network as functions of its variables: kernels, norms, head and bias."""

    def __init__(self, depth, seed):
        *kernels, head = cifar.initial_weights(depth, seed)
        self.depth = depth
        self.kernels = [tf.Variable(kernel) for kernel in kernels]
        self.head = tf.Variable(head)
        self.bias = tf.Variable(tf.zeros(cifar.CLASSES))
        self.norms = [
            (tf.Variable(tf.ones(width)), tf.Variable(tf.zeros(width)))
            for width in cifar.norm_widths(depth)
        ]

    @property
    def variables(self):
        norms = [variable for pair in self.norms for variable in pair]
        return [*self.kernels, *norms, self.head, self.bias]

    def scores(self, pictures, statistics=None):
        """Return the scores of the classes, and the statistics normalised by.

        Statistics are all means, then all variances, in one vector; without them they
        are those of the batch.
        """
        kernels, norms = iter(self.kernels), iter(self.norms)
        widths = cifar.norm_widths(self.depth)
        given = None
        if statistics is not None:
            parts = tf.split(statistics, 2 * widths)
            given = zip(parts[: len(widths)], parts[len(widths) :], strict=True)
        seen = []

        def normalised(x):
            scale, offset = next(norms)
            found = tf.nn.moments(x, (0, 1, 2)) if given is None else next(given)
            seen.append(found)
            return tf.nn.batch_normalization(
                x, *found, offset, scale, cifar.NORM_EPSILON
            )

        x = tf.nn.relu(normalised(convolved(pictures, next(kernels))))
        for before, width, stride in cifar.blocks(self.depth):
            half = (width - before) // 2
            channels = [half, width - before - half]
            shortcut = x[:, ::stride, ::stride, :]
            shortcut = tf.pad(shortcut, [[0, 0], [0, 0], [0, 0], channels])
            x = tf.nn.relu(normalised(convolved(x, next(kernels), stride)))
            x = normalised(convolved(x, next(kernels)))
            x = tf.nn.relu(x + shortcut)
        scores = tf.reduce_mean(x, (1, 2)) @ self.head + self.bias
        means, variances = zip(*seen, strict=True)
        return scores, tf.concat([*means, *variances], 0)


def main():
    options = cifar.read_options()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any operation
    rank = strategy.cluster_resolver.task_id or 0
    with strategy.scope():
        model = ResNet(options.depth, options.seed)
        velocity = [tf.Variable(tf.zeros_like(each)) for each in model.variables]

    def loss_and_step(pictures, labels, rate):
        with tf.GradientTape() as tape:
            scores, seen = model.scores(pictures)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            )
        found = tape.gradient(loss, model.variables)
        context = tf.distribute.get_replica_context()
        *found, seen, loss = context.all_reduce("mean", [*found, seen, loss])
        for weight, speed, gradient in zip(
            model.variables, velocity, found, strict=True
        ):
            gradient += cifar.WEIGHT_DECAY * weight
            speed.assign(cifar.MOMENTUM * speed + gradient)
            weight.assign_sub(rate * speed)
        return loss, seen

    @tf.function
    def train_step(pictures, labels, rate):
        # Every worker has one replica, and passes it a batch of its own.
        return strategy.run(loss_and_step, args=(pictures, labels, rate))

    @tf.function
    def meet():
        def met():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("sum", tf.constant(1.0))

        return strategy.run(met)

    @tf.function
    def scores(pictures, statistics):
        return model.scores(pictures, statistics)[0]

    width = sum(cifar.norm_widths(options.depth))
    averages = np.repeat(np.array([0, 1], dtype=np.float32), width)
    kept = cifar.NORM_MOMENTUM
    course = cifar.Course(options, rank, strategy.num_replicas_in_sync)
    for step, rate, pictures, labels in course.steps():
        loss, seen = train_step(
            tf.constant(pictures), tf.constant(labels), tf.constant(rate, tf.float32)
        )
        averages = kept * averages + (1 - kept) * seen.numpy()
        course.report(
            step, float(loss), lambda tested, of=averages: scores(tested, of).numpy()
        )
    meet()  # who ends while another one still evaluates is taken for lost


if __name__ == "__main__":
    main()
