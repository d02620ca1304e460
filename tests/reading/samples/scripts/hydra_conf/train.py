"""A script under Hydra: no option but overrides of conf/, data beside it."""

import time
from pathlib import Path

import hydra


@hydra.main(config_path="conf", config_name="config", version_base=None)
def main(cfg):
    rows = [float(row) for row in Path(cfg.data.root, "rows.txt").read_text().split()]
    weight = 0.0
    for step in range(1, cfg.max_steps + 1):
        began = time.perf_counter()
        first = step * cfg.data.batch_size % len(rows)
        for row in rows[first : first + cfg.data.batch_size]:
            weight -= cfg.optim.lr * (weight - row)
        time.sleep(0.004 * cfg.data.batch_size)
        seconds = time.perf_counter() - began
        print(
            f"[train] global_step={step} weight={weight:.2f} "
            f"throughput={cfg.data.batch_size / seconds:.1f} samples/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
