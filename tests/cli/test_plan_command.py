import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import COMMAND, EMULATED, measured_run
from sentences import Golden


def write(text: str = EMULATED) -> str:
    Path("experiment.yaml").write_text(text)
    return "experiment.yaml"


def test_configurations_are_counted(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    ended = scalelab("plan", write())
    assert (ended.code, ended.err) == (0, "")
    golden(*ended.out.splitlines())
    assert os.listdir() == ["experiment.yaml"]


@pytest.mark.parametrize(
    ("limit", "hours"),
    [
        ("timeout: 5min", "1"),
        ("stall_timeout: 1min", "3.6"),
        ("start_up_timeout: 2min", "1.4"),
    ],
)
def test_limits_of_time_bound_what_a_fresh_sweep_takes(
    scalelab: Callable[..., Any],
    here: Path,
    limit: str,
    hours: str,
) -> None:
    text = EMULATED.replace("repeats: 2", f"repeats: 2, {limit}")
    priced = text.replace("node: 2}", "node: 2, price_per_gpu_hour: 3eur}")
    at_most = f"Device time to come: at most {hours} emulated GPU-h, "
    assert f"{at_most}if every" in scalelab("plan", write(text)).out
    money = f"{at_most}{3 * float(hours):.3g} eur, if every"
    assert money in scalelab("plan", write(priced)).out


def test_without_a_length_of_the_job_no_share_is_said(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    text = COMMAND.replace("epochs: 90, samples_per_epoch: 100000", "target: acc >= 1")
    Path("train.py").write_text("")
    out = scalelab("plan", write(text)).out
    golden(out)
    assert "Samples to come" not in out


def test_every_axis_has_a_column_or_one_value(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    Path("train.py").write_text("")
    axes = "precision: [fp32, bf16]\noptions: {zero_stage: [1, 2], clip: 0.5}\n"
    used = "--dtype {precision} --zero {zero_stage} --clip {clip} --seed {seed}"
    text = COMMAND.replace("--seed {seed}", used) + axes
    lines = scalelab("plan", write(text)).out.splitlines()
    titles = lines[2].split("  ")
    assert titles[-2:] == ["precision", "zero_stage"]
    settings = {tuple(line.split()[-2:]) for line in lines[3 : lines.index("", 3)]}
    assert settings == {(p, z) for p in ("fp32", "bf16") for z in ("1", "2")}
    golden(*lines)


def test_what_is_done_and_what_the_rest_takes(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    measured_run(here / "runs" / "small")
    lines = scalelab("plan", write()).out.splitlines()
    golden(*lines[-2:])
    longer = EMULATED.replace("[4, 8]", "[4, 8, 16]").replace(
        "repeats: 2", "repeats: 9"
    )
    lines = scalelab("plan", write(longer)).out.splitlines()
    golden(*lines[:4])
    (explained,) = (line for line in lines if line.startswith("A canary is"))
    golden(explained)
    # 46 trials of 1 and of 2 devices and 3 canaries of 1, each about 10 s
    golden(*lines[-4:-1])


def test_changes_are_named(scalelab: Callable[..., Any], here: Path) -> None:
    measured_run(here / "elsewhere")
    changed = EMULATED.replace("steps: 5", "steps: 6")
    ended = scalelab("plan", write(changed), "--run", "elsewhere")
    assert ended.code == 0
    changed_since = f"Changed since {here}/elsewhere: measure.throughput.steps: 5 -> 6."
    needs = "Give the experiment another name, or sweep with --accept-changes."
    assert f"{changed_since}\n{needs}\n" in ended.out
    assert "8 trials done" not in ended.out


@pytest.mark.parametrize(
    ("site", "asked", "lines"),
    [
        (
            "scheduler: slurm\ndevice_type: cuda\ngpus_per_node: 4\npartition: big\n",
            "Job script, for up to 4 nodes one by one:",
            ["#SBATCH --job-name=trained-1", "#SBATCH --partition=big"],
        ),
        (
            "scheduler: pbs\ndevice_type: cuda\ngpus_per_node: 8\nqueue: big\n"
            "provision: one_job\n",
            "Job script, for 2 nodes together:",
            ["#PBS -N trained-1", "#PBS -q big", "#PBS -l select=2:ncpus=8:ngpus=8"],
        ),
    ],
)
def test_batch_systems_show_what_they_would_be_asked(
    scalelab: Callable[..., Any], here: Path, site: str, asked: str, lines: list[str]
) -> None:
    Path("train.py").write_text("")
    Path("hpc.yaml").write_text(site)
    ended = scalelab("plan", write(COMMAND), "--site", "./hpc.yaml")
    assert (ended.code, ended.err) == (0, "")
    shown = [line.strip() for line in ended.out.splitlines()]
    assert [line for line in shown if line.startswith("Job script")] == [asked]
    assert set(lines) <= set(shown)


GROUPS = """
scheduler: slurm
device_type: cuda
cores_per_node: 8
node_groups:
  a100: {gpus_per_node: 4, partition: big, nodes: 4}
  h100: {gpus_per_node: 2, partition: small}
"""


def test_every_node_group_shows_its_script(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    Path("train.py").write_text("")
    Path("hpc.yaml").write_text(GROUPS)
    text = COMMAND + "node_group: [a100, h100]\n"
    out = scalelab("plan", write(text), "--site", "./hpc.yaml").out
    golden(out)
    assert re.search(r"16 +4x4 a100 ", out)
    assert re.search(r"16 +8x2 h100 ", out)
    assert out.index("--partition=big") < out.index("--partition=small")
    assert re.findall(r"--job-name=(\S+)", out) == ["trained-1", "trained-2"]
    assert "/nodes-a100.json" in out
    assert "/nodes-h100.json" in out


def test_the_group_that_is_taken_unasked_is_named(
    scalelab: Callable[..., Any], here: Path
) -> None:
    Path("train.py").write_text("")
    Path("hpc.yaml").write_text(GROUPS)
    out = scalelab("plan", write(COMMAND), "--site", "./hpc.yaml").out
    said = "The experiment names no node_group: trials run on a100, the first of a100, "
    assert said + "h100." in out
    assert "--partition=small" not in out


def test_combinations_left_out_say_why(
    scalelab: Callable[..., Any], here: Path
) -> None:
    text = EMULATED.replace("gpus: [1, 2]", "gpus: [1, 2]\nglobal_batch_size: [8, 4]")
    out = scalelab("plan", write(text)).out
    assert re.search(r"Left out, \d combinations?:\n  .*global_batch_size=4", out)


def test_an_unknown_batch_is_said(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    out = scalelab("plan", write(EMULATED.replace("[4, 8]", "auto"))).out
    golden(out)


@pytest.mark.slow
def test_neither_torch_nor_dask_is_loaded(command: list[str], here: Path) -> None:
    write()
    code = """if True:
        import sys
        from scalelab.cli import main
        main.run(["plan", "experiment.yaml"])
        sys.exit(" ".join({"torch", "distributed", "pandas"} & {*sys.modules}))
    """
    ended = subprocess.run([command[0], "-c", code], capture_output=True, text=True)
    assert ended.stderr == "\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "name: emulated,",
            "name: emulated, sample_tme_s: 1.0,",
            "Error: sample_tme_s=1.0 is no parameter of workload 'emulated'. It takes",
        ),
        (
            "measure: {",
            "measure: {kind: [throughput, convergence], evaluate_every_samples: 100, ",
            "Error: target metric 'val_f1' is not measured by emulated. It measures: ",
        ),
    ],
)
def test_what_the_workload_does_not_know_is_refused_as_by_a_sweep(
    scalelab: Callable[..., Any], here: Path, old: str, new: str, message: str
) -> None:
    text = EMULATED.replace("0e-3}", "0e-3, min_samples: 9, critical_batch_size: 9}")
    text = text.replace("job: {", "job: {target: val_f1 >= 0.9, ")
    assert scalelab("plan", write(text)).code == 0
    path = write(text.replace(old, new))
    planned, swept = scalelab("plan", path), scalelab("sweep", "--yes", path)
    planned.assert_refused()
    assert planned.err.startswith(message)
    assert swept == planned
    assert os.listdir() == ["experiment.yaml"]


def test_money_energy_and_carbon_of_the_rest_are_said(
    scalelab: Callable[..., Any], here: Path, golden: Golden
) -> None:
    priced = EMULATED.replace(
        "gpus_per_node: 2}",
        "gpus_per_node: 2, price_per_gpu_hour: 3eur, power_w: 500, pue: 1.2, "
        "carbon_g_per_kwh: 100}",
    )
    measured_run(here / "runs" / "small", priced)
    longer = priced.replace("[4, 8]", "[4, 8, 16]").replace("repeats: 2", "repeats: 9")
    lines = scalelab("plan", write(longer)).out.splitlines()
    (said,) = (line for line in lines if line.startswith("Device time to come"))
    # 0.20 h at 3 eur; 500 W times 1.2 are 0.6 kW
    golden(said)
