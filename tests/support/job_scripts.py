"""A program to train by a job script, and the experiment that measures it."""

from typing import Any

# Trains over gloo, says what it was started with, and goes on from what it has saved.
TRAIN = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

out, precision, batch, trial_id, label, rank = sys.argv[1:7]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = Path(out, "saved")
first = 1 + (int(saved.read_text()) if saved.exists() else 0)
for step in range(first, 41):
    loss = (model(torch.ones(int(batch), 4)) - dist.get_rank()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.01)
    if dist.get_rank() == 0:
        print(f"step {step} samples {step * int(batch) * dist.get_world_size()}")
    if os.environ.get("STOP_AT") == str(step) and "SCALELAB_TRIAL_ID" not in os.environ:
        if dist.get_rank() == 0:
            saved.write_text(str(step))
            time.sleep(0.5)
        sys.exit(3)
weights = [torch.zeros(4) for _ in range(dist.get_world_size())]
dist.all_gather(weights, next(model.parameters()).detach().flatten())
known = {
    "argv": sys.argv[1:], "first": first, "weights": [w.tolist() for w in weights],
    "mode": os.environ["MODE"], "seed": os.environ["SCALELAB_SEED"],
    "host": os.uname().nodename, "me": os.environ["ME"],
    "job": os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID"),
    "rank": int(os.environ["RANK"]), "local_rank": os.environ["LOCAL_RANK"],
}
(Path(out) / f"rank-{dist.get_rank()}.json").write_text(json.dumps(known))
dist.barrier()
dist.destroy_process_group()
"""
EXPERIMENT: dict[str, Any] = {
    "command": "python -u train.py {trial_dir} {precision} {local_batch_size} "
    "{trial_id} '{label}' {rank}",
    "metrics": {"regex": r"step (?P<step>\d+) samples (?P<samples>\d+)"},
    "measure": {"kind": "throughput", "warmup_steps": 2, "steps": 20, "repeats": 1},
    "env": {"MODE": "off line's", "ME": "rank {rank}"},
    "uses": ["SCALELAB_SEED"],
    "options": {"label": "a b"},
    "precision": "bf16",
    "gpus": [2, 4],
    "local_batch_size": 8,
    "job": {"samples": 3000},
}
