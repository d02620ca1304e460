"""Seven kinds of scripts, in the manner of public ones, go from init to right figures.

Each is swept as ``init`` proposes it, with fewer steps and repeats than an answer would
take. What it prints of its own speed is the witness.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import scalelab

KINDS = Path(__file__).parents[1] / "samples" / "scripts"
BATCH = 8
# So that a sweep takes seconds: of what is measured this changes nothing.
SHORTER = ("steps: 50, repeats: 3", "steps: 24, repeats: 1, long_trial: none")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A script, what init is to write for it, and how it tells its own speed.

    Parameters
    ----------
    name
        Folder of the script.
    script
        Its file.
    gpus
        Devices that init is to propose, of two.
    wrote
        What stands in the experiment, among other things.
    speed
        Expression of what it says of its own speed.
    step_time_s
        Seconds of a step from that number.
    options
        With which it is run for a sample of its output; None: it prints nothing.
    """

    name: str
    script: str = "train.py"
    gpus: Sequence[int] = (1,)
    wrote: Sequence[str]
    speed: str
    step_time_s: Callable[[float], float]
    options: Sequence[str] | None = ()


SEVEN = [
    Kind(
        name="argparse_ddp",
        gpus=(1, 2),
        wrote=[
            "python train.py --batch-size {local_batch_size} --lr {learning_rate} "
            "--save-dir {trial_dir}",
            "launcher: torchrun ",
            "snapshot: [comm.py, params.py, train.py]",
            "epoch)\\W*(?P<epoch>\\d+)",
            "(?P<batch_of_epoch>\\d+) */ *(?P<batches_of_epoch>\\d+)",
        ],
        speed=r"ms/batch +(\S+)",
        step_time_s=lambda milliseconds: milliseconds / 1000,
        options=("--epochs", "1"),
    ),
    Kind(
        name="hydra_conf",
        wrote=[
            "python train.py data.batch_size={local_batch_size} "
            "optim.lr={learning_rate} hydra.run.dir={trial_dir}",
            "launcher: none",
            "snapshot: [conf/, data/, hydra/, train.py]",
            "(?P<step>\\d+)",
        ],
        speed=r"throughput=(\S+)",
        step_time_s=lambda rate: BATCH / rate,
        options=("max_steps=12",),
    ),
    Kind(
        name="trl_parser",
        gpus=(1, 2),
        wrote=[
            "--per_device_train_batch_size {local_batch_size}",
            "--output_dir {trial_dir}",
            "metrics: huggingface ",
            "snapshot: [train.py, trl/]",
        ],
        speed=r"([\d.]+)it/s",
        step_time_s=lambda rate: 1 / rate,
        options=("--output_dir", "out", "--max_steps", "12"),
    ),
    Kind(
        name="metric_logger",
        script="main.py",
        gpus=(1, 2),
        wrote=[
            "--accum_iter {gradient_accumulation_steps}",
            "launcher: torchrun ",
            "metrics: metric_logger ",
            "snapshot: [main.py, meters.py]",
        ],
        speed=r"time: (\S+)",
        step_time_s=lambda seconds: seconds,
        options=("--epochs", "1"),
    ),
    Kind(
        name="single_process",
        script="main.py",
        wrote=[
            "--save {trial_dir}/model.pt",
            "launcher: none",
            "snapshot: [data/, main.py]",
            "(?P<batch_of_epoch>\\d+)",
        ],
        speed=r"ms/batch +(\S+)",
        step_time_s=lambda milliseconds: milliseconds / 1000,
        options=("--epochs", "1"),
    ),
    Kind(
        name="samples",
        script="mnist.py",
        wrote=[
            "launcher: none",
            "(?P<samples_of_epoch>\\d+) */ *(?P<samples_in_epoch>\\d+)",
        ],
        speed=r"(\S+) img/s",
        step_time_s=lambda rate: BATCH / rate,
        options=("--epochs", "1"),
    ),
    Kind(
        name="csv_only",
        wrote=["launcher: none", "metrics: {csv: '{trial_dir}/metrics.csv'}"],
        speed=r"^\d+,.*,(\S+)$",
        step_time_s=lambda rate: BATCH / rate,
        options=None,
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            id=kind.name,
            marks=[] if kind.name == "samples" else pytest.mark.repetition,
        )
        for kind in SEVEN
    ],
)
def test_a_script_goes_from_init_to_right_figures(kind: Kind, tmp_path: Path) -> None:
    home = tmp_path / kind.name
    shutil.copytree(KINDS / kind.name, home)

    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    asked = ["-m", "scalelab", "init", "--from", kind.script]
    if kind.options is not None:
        printed = run(kind.script, *kind.options)
        assert printed.returncode == 0, printed.stderr
        (home / "sample.log").write_text(printed.stdout + printed.stderr)
        asked += ["--log", "sample.log"]
    written = run(*asked)
    assert written.returncode == 0, written.stderr
    assert written.stdout.endswith("Next: scalelab try experiment.yaml\n")
    path = home / "experiment.yaml"
    text = path.read_text()
    for part in (f"gpus: [{', '.join(map(str, kind.gpus))}]", *kind.wrote):
        assert part in " ".join(text.split()), text
    assert f"local_batch_size: [{BATCH}]" in text
    path.write_text(text.replace(*SHORTER))

    swept = run("-m", "scalelab", "sweep", "experiment.yaml")
    assert swept.returncode == 0, swept
    (directory,) = (home / "runs").iterdir()
    rows = scalelab.load(directory).observations
    assert sorted(rows["world_size"]) == list(kind.gpus)
    for row in rows.itertuples():
        assert row.outcome == "completed", row
        names = "metrics.csv" if kind.options is None else "rank-0.log"
        (file,) = directory.rglob(f"*{row.trial_id}*/**/{names}")
        own = own_step_time_s(kind, file.read_text())
        print(
            f"{kind.name} {row.world_size}: {row.step_time_s:.4f} s, its own {own:.4f}"
        )
        assert row.step_time_s == pytest.approx(own, rel=0.1)


def own_step_time_s(kind: Kind, text: str) -> float:
    """Return the seconds of a step as the script tells them, without its first."""
    found = re.findall(kind.speed, text, flags=re.M)
    times_s = [kind.step_time_s(float(each)) for each in found]
    later = times_s[len(times_s) // 3 :]
    return sum(later) / len(later)
