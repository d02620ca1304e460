"""What a user is told where trials do not fit into memory, or onto the cores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import EMULATED, completed, measured_run
from real_sweeps import Sweep, rows

from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.session import load
from scalelab.site.profile import num_cores

CORES = num_cores()
CROWDED = f"""\
name: crowded
workload: {{name: digits_mlp, hidden_sizes: [16]}}
measure: {{long_trial: none, warmup_steps: 1, steps: 5, repeats: 2}}
job: {{samples: 100000}}
gpus: [1, {2 * CORES}]
local_batch_size: 8
learning_rate: 0.1
site: {{device_type: cpu, gpus_per_node: {2 * CORES}}}
"""
SAID = (
    f"{2 * CORES} CPU slots are declared, this machine has {CORES} "
    f"core{'s' if CORES > 1 else ''}: trials of more ranks are measured, but their "
    f"times are left out of the answer. Declare gpus_per_node: {CORES}."
)


def too_large(trial: Trial) -> AttemptResult:
    return AttemptResult(
        outcome=Outcome.OUT_OF_MEMORY,
        reason=f"rank {trial.world_size - 1} raised OutOfMemoryError: no.",
        measurements={"allocated_gpu_s": 2.0, "device_name": "A100"},
    )


def small_fit(trial: Trial) -> AttemptResult:
    return completed(trial) if trial.local_batch_size < 8 else too_large(trial)


@pytest.mark.slow
def test_what_did_not_fit_is_said_wherever_the_answer_stands(
    scalelab: Callable[..., Any], here: Path
) -> None:
    (here / "experiment.yaml").write_text(EMULATED)
    run = measured_run(here / "runs" / "small", ending=small_fit).directory
    said = "Local batch 8 did not fit into memory; 4 did."
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 0
    assert "Did not fit into memory: 4 trials.\n" in ended.err
    assert f"\n{said}\n" in scalelab("recommend", run, "--explain").out
    assert f"  {said}\n" in scalelab("status", run).out
    facts = json.loads(scalelab("recommend", run, "--json").out)["memory_limits"]
    assert [(each["local_batch_size"], each["num_trials"]) for each in facts] == [
        (8, 4)
    ]
    page = (run / "report.html").read_text()
    box = page[page.index('<section class="answer" aria-label="The answer">') :]
    assert said.rstrip(".") in box[: box.index("</section>")]
    assert page.count('<div class="failure measurement">') == 1
    assert "3 more ended so" in page


def test_where_nothing_fits_all_is_measured_and_there_is_no_answer(
    scalelab: Callable[..., Any], here: Path
) -> None:
    (here / "experiment.yaml").write_text(EMULATED)
    run = measured_run(here / "runs" / "small", ending=too_large).directory
    said = "Nothing fitted into memory: each of 8 trials ran out of it"
    ended = scalelab("sweep", "experiment.yaml")
    assert ended.code == 0
    assert f"No recommendation: {said}" in ended.err
    assert "throughput trial" not in ended.err
    asked = scalelab("recommend", run)
    assert asked.code == 1
    assert f"Error: {said}" in asked.err


def test_trials_with_more_ranks_than_cores_are_announced(
    scalelab: Callable[..., Any], here: Path
) -> None:
    Path("crowded.yaml").write_text(CROWDED)
    assert f"\n{SAID}\n" in scalelab("plan", "crowded.yaml").out
    Path("crowded.yaml").write_text(CROWDED.replace(f"1, {2 * CORES}", "1"))
    assert "are declared" not in scalelab("plan", "crowded.yaml").out
    Path("emulated.yaml").write_text(
        EMULATED.replace("[1, 2]", f"[1, {2 * CORES}]").replace(
            "gpus_per_node: 2", f"gpus_per_node: {2 * CORES}"
        )
    )
    assert "are declared" not in scalelab("plan", "emulated.yaml").out


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_that_had_their_cores_count(sweep: Sweep, here: Path) -> None:
    ended = sweep(CROWDED)
    assert ended.returncode == 0, ended
    assert ended.stderr.splitlines()[0] == SAID
    assert ended.stdout.startswith("Use 1 CPU slot")
    why = "2 of 4 trials ignored: there were more ranks than cores"
    assert why in {ground.text for ground in load("runs/crowded").recommend().grounds}
    marks = {
        (row["world_size"], tuple(row["validity"])) for row in rows("runs/crowded")
    }
    assert marks == {(1, ()), (2 * CORES, ("oversubscribed_cores",))}
