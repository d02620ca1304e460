"""Start-up: `--help`, and `recommend` on 1,000 observations, asked first and again.

Lines, as ratios of CPU times taken turn by turn, with one thread of linear algebra:
`--help` at most five times `python -c pass`; a first answer at most 1.8 times, and one
that was asked before at most 0.5 times importing pandas and scipy.optimize.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from comparison import Comparison

REPEATS = 11


def seconds(*command: str) -> float:
    """Return the CPU time of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=alone)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    python, scalelab = sys.executable, (sys.executable, "-m", "scalelab")
    helped, bare, imported, first, again = ([] for _ in range(5))
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder) / "table.csv")
        run = f"{folder}/run"
        seconds(*scalelab, "import", f"{folder}/table.csv", run)
        recommend = (*scalelab, "recommend", run, "--samples")
        seconds(*recommend, "10000000")
        for number in range(1, 1 + REPEATS):
            helped.append(seconds(*scalelab, "--help"))
            bare.append(seconds(python, "-c", "pass"))
            imported.append(seconds(python, "-c", "import pandas, scipy.optimize"))
            first.append(seconds(*recommend, str(10**7 + number)))
            again.append(seconds(*recommend, str(10**7 + number)))
    for name, ours_s, peer_s, limit in (
        ("--help over the bare interpreter", helped, bare, 5),
        ("a first recommend over its imports", first, imported, 1.8),
        ("recommend asked again over these imports", again, imported, 0.5),
    ):
        print(Comparison(ours_s=ours_s, peer_s=peer_s).line(name, limit=limit))


if __name__ == "__main__":
    main()
