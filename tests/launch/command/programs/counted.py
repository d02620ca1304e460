"""What a small program counts itself, beside what is measured of it."""

import argparse
import atexit
import json
import os
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

STEPS = 40
PACE_S = 0.005
counts = {"steps": 0, "samples": 0}


def asked():
    """Return what the command line says of batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--accumulation", type=int)
    return parser.parse_args()


def model_and_data(num_samples=4096):
    """Return a small model, its optimizer and data, the same in every rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    data = TensorDataset(
        torch.randn(num_samples, 8), torch.randint(0, 2, (num_samples,))
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1), data


def count(samples):
    """Count a step of so many samples; it takes its time. Tell whether to go on."""
    time.sleep(PACE_S)
    counts["steps"] += 1
    counts["samples"] += samples
    return counts["steps"] < STEPS


@atexit.register
def _tell():
    rank = os.environ.get("RANK", "0")
    file = Path(os.environ["SCALELAB_TRIAL_DIR"], f"counted-{rank}.json")
    file.write_text(json.dumps(counts))
