"""One process that prints nothing and writes its metrics to a table."""

import argparse
import csv
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--max-steps", type=int, default=2000)
parser.add_argument("--output-dir", default="output")
args = parser.parse_args()

os.makedirs(args.output_dir, exist_ok=True)
with open(os.path.join(args.output_dir, "metrics.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, ["step", "loss", "samples_per_s"])
    writer.writeheader()
    for step in range(1, args.max_steps + 1):
        began = time.perf_counter()
        time.sleep(0.004 * args.batch_size)
        rate = args.batch_size / (time.perf_counter() - began)
        writer.writerow(
            {"step": step, "loss": 1 / step, "samples_per_s": f"{rate:.2f}"}
        )
        file.flush()
