"""ResNet on CIFAR-10 with a Keras model, its ranks joined by PyTorch's DDP.

KERAS_BACKEND=torch torchrun --nproc-per-node 2 train_keras.py --batch-size 32
"""

import cifar
import keras
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def normalised(x):
    return keras.layers.BatchNormalization(
        momentum=cifar.NORM_MOMENTUM, epsilon=cifar.NORM_EPSILON
    )(x)


def convolved(x, width, stride=1):
    # Padded by hand: "same" pads only one side where the stride is 2.
    x = keras.layers.ZeroPadding2D(1)(x)
    return keras.layers.Conv2D(width, 3, stride, use_bias=False)(x)


def make_model(depth, weights):
    pictures = keras.Input((32, 32, 3))
    x = keras.layers.ReLU()(normalised(convolved(pictures, cifar.WIDTHS[0])))
    for before, width, stride in cifar.blocks(depth):
        half = (width - before) // 2
        shortcut = x[:, ::stride, ::stride, :]
        pads = ((0, 0), (0, 0), (0, 0), (half, width - before - half))
        shortcut = keras.ops.pad(shortcut, pads)
        x = keras.layers.ReLU()(normalised(convolved(x, width, stride)))
        x = normalised(convolved(x, width))
        x = keras.layers.ReLU()(x + shortcut)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(pictures, keras.layers.Dense(cifar.CLASSES)(x))
    convolutions = [la for la in model.layers if isinstance(la, keras.layers.Conv2D)]
    for layer, kernel in zip(convolutions, weights[:-1], strict=True):
        layer.set_weights([kernel])
    model.layers[-1].kernel.assign(weights[-1])
    return model


def main():
    options = cifar.read_options()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    weights = cifar.initial_weights(options.depth, options.seed)
    model = make_model(options.depth, weights)
    ranks = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=options.lr,
        momentum=cifar.MOMENTUM,
        weight_decay=cifar.WEIGHT_DECAY,
    )

    def scores_of(pictures):
        with torch.no_grad():
            scores = model(keras.ops.convert_to_tensor(pictures), training=False)
        return keras.ops.convert_to_numpy(scores)

    course = cifar.Course(options, dist.get_rank(), dist.get_world_size())
    for step, rate, pictures, labels in course.steps():
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        scores = ranks(keras.ops.convert_to_tensor(pictures), training=True)
        targets = torch.from_numpy(labels).long().to(scores.device)
        loss = F.cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        course.report(step, mean.item(), scores_of)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
