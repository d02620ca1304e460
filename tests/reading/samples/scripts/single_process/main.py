"""One process on one device, as a language model of PyTorch's examples; ./data."""

import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=str, default="./data")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=20)
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--log-interval", type=int, default=2)
parser.add_argument("--save", type=str, default="model.pt")
args = parser.parse_args()

assert os.path.exists(os.path.join(args.data, "train.txt"))
BATCHES = 30
for epoch in range(1, args.epochs + 1):
    began = time.time()
    for batch in range(1, BATCHES + 1):
        time.sleep(0.004 * args.batch_size)
        if batch % args.log_interval == 0:
            ms = (time.time() - began) * 1000 / args.log_interval
            began = time.time()
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{BATCHES:5d} batches "
                f"| lr {args.lr:02.2f} | ms/batch {ms:5.2f} | loss {9 / epoch:5.2f}"
            )
    with open(args.save, "w") as file:
        file.write("a model")
