"""Train a small classifier with the fit of Keras.

KERAS_BACKEND=torch python train.py --batch-size 256
"""

import argparse

import keras
import numpy as np


def make_data(samples=8192):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((samples, 256), dtype=np.float32)
    return features, (features @ rng.standard_normal((256, 10))).argmax(axis=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=256, help="of all devices")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    model = keras.Sequential(
        [
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(args.lr),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    features, labels = make_data()
    model.fit(features, labels, batch_size=args.batch_size, epochs=args.epochs)


if __name__ == "__main__":
    main()
