"""Start-up: `--help` over the bare interpreter, and `recommend`, asked first and again.

Lines: `--help` at most 150 ms over `python -c pass`; `recommend` on 1,000 observations
about 1 s where it was asked before.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPEATS = 11


def seconds(*command: str) -> float:
    """Return the wall time of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def write_table(path: Path) -> None:
    """Write 1,000 made-up measurements of one workload as a foreign table."""
    rng = np.random.default_rng(0)
    rows = ["workload,num_nodes,world_size,local_batch_size,step_time_s"]
    for index in range(1000):
        nodes, batch = 2 ** (index % 5), 2 ** (4 + index % 4)
        step = 0.02 + 1e-3 * batch + 0.01 * np.log2(nodes)
        rows.append(
            f"made_up,{nodes},{4 * nodes},{batch},{step * rng.lognormal(0, 0.03)}"
        )
    path.write_text("\n".join(rows) + "\n")


def main() -> None:
    scalelab = (sys.executable, "-m", "scalelab")
    over = []
    for _ in range(REPEATS):
        helped = seconds(*scalelab, "--help")
        over.append(helped - seconds(sys.executable, "-c", "pass"))
    print(
        f"--help over the bare interpreter: {statistics.median(over) * 1e3:.0f} ms "
        f"[{min(over) * 1e3:.0f} to {max(over) * 1e3:.0f}, n={REPEATS}], line <= 150 ms"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder) / "table.csv")
        run = f"{folder}/run"
        seconds(*scalelab, "import", f"{folder}/table.csv", run)
        recommend = (*scalelab, "recommend", run, "--samples")
        seconds(*recommend, "10000000")
        first = [seconds(*recommend, str(10**7 + n)) for n in range(1, 1 + REPEATS)]
        again = [seconds(*recommend, str(10**7 + n)) for n in range(1, 1 + REPEATS)]
    for name, times in (("fit included", first), ("asked again, line 1 s", again)):
        print(
            f"recommend, 1,000 observations, {name}: {statistics.median(times):.2f} s "
            f"[{min(times):.2f} to {max(times):.2f}, n={REPEATS}]"
        )


if __name__ == "__main__":
    main()
