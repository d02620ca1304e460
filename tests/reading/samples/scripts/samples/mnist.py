"""One process that counts the samples of an epoch, as PyTorch's MNIST example."""

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--test-batch-size", type=int, default=1000)
parser.add_argument("--epochs", type=int, default=14)
parser.add_argument("--log-interval", type=int, default=2)
args = parser.parse_args()

SAMPLES = 480
for epoch in range(1, args.epochs + 1):
    began = time.time()
    for batch in range(1, SAMPLES // args.batch_size + 1):
        time.sleep(0.004 * args.batch_size)
        if batch % args.log_interval == 0:
            done = batch * args.batch_size
            rate = args.log_interval * args.batch_size / (time.time() - began)
            began = time.time()
            print(
                f"Training epoch: {epoch} [{done}/{SAMPLES} "
                f"({100 * done // SAMPLES}%)]\tloss: {2 / epoch:.6f}\t{rate:.2f} img/s"
            )
    print(f"Test set: average loss: {1 / epoch:.4f}, accuracy: 9000/10000 (90%)")
