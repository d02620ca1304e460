"""A script that waits as if it trained; a large batch is more than it can take."""

import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--ranks", type=int, required=True)
arguments = parser.parse_args()
if arguments.batch > 32:
    raise ValueError(f"a batch of {arguments.batch} is too large")
for step in range(1, 13):
    time.sleep(0.02 + 0.001 * arguments.batch)
    print(f"step {step} samples {step * arguments.batch * arguments.ranks}", flush=True)
