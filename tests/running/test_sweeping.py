import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conducting import Conductor, Nodes
from measured_runs import COMMAND, EMULATED, completed, end_trial, failed, measured_run
from planned_trials import planned_trials
from sentences import refused

from scalelab.cluster.local import LocalNodes
from scalelab.errors import (
    LeaseError,
    MissingExtraError,
    SpecError,
    StoreError,
    install_command,
)
from scalelab.experiment.spec import Experiment
from scalelab.inputs.outcome import Outcome
from scalelab.records.attempt import AttemptResult
from scalelab.records.control.events import Event, TrialEnded
from scalelab.records.store import RunStore
from scalelab.running import sweep as module
from scalelab.running.execution import run_sweep
from scalelab.running.sweep import RunningSweep, Sweep


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path.with_name("config")))
    return tmp_path


def write(text: str = EMULATED) -> Path:
    path = Path("experiment.yaml")
    path.write_text(text)
    return path


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if it starts nodes."""

    def refuse(self: LocalNodes) -> None:
        pytest.fail("nodes were started")

    monkeypatch.setattr(LocalNodes, "_start", refuse)


def test_a_new_sweep_is_described_and_nothing_is_written(here: Path) -> None:
    sweep = Sweep.read(write()).prepared()
    assert sweep.directory == here / "runs" / "small"
    assert len(sweep.plan.trials) == sweep.num_remaining == 8
    assert sweep.num_finished == 0
    assert sweep.gpu_hours is None
    assert sweep.question is None
    assert sweep.changes == ()
    assert [path.name for path in here.iterdir()] == ["experiment.yaml"]


def test_the_directory_may_be_chosen(here: Path) -> None:
    assert Sweep.read(write(), directory="elsewhere/x").prepared().directory == (
        here / "elsewhere" / "x"
    )


def test_a_further_value_extends_the_run(here: Path) -> None:
    measured_run(here / "runs" / "small")
    longer = EMULATED.replace("[4, 8]", "[4, 8, 16]")
    sweep = Sweep.read(write(longer)).prepared()
    assert (sweep.num_finished, sweep.num_remaining) == (8, 4)
    # 2 repeats on 1 and on 2 devices, 10 s each as the most similar ones took
    assert sweep.gpu_hours == pytest.approx(2 * (1 + 2) * 10 / 3600)


def test_what_was_lost_runs_again_and_what_failed_on_request(here: Path) -> None:
    def ending(trial: Any) -> AttemptResult:
        if trial.world_size == 1:
            return completed(trial)
        if trial.local_batch_size == 4:
            return AttemptResult(outcome=Outcome.CANCELLED, reason="Stopped.")
        return failed(trial)

    measured_run(here / "runs" / "small", ending=ending)
    assert Sweep.read(write()).prepared().num_remaining == 2
    assert Sweep.read(write(), retry_failed=True).prepared().num_remaining == 4


def test_a_trial_whose_files_were_removed_runs_again(here: Path) -> None:
    store = measured_run(here / "runs" / "small")
    row = store.rows()[0]
    shutil.rmtree(store.attempt_directory(row["trial_id"], row["attempt"]))
    sweep = Sweep.read(write()).prepared()
    assert (sweep.num_finished, sweep.num_remaining) == (7, 1)


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("2.0e-3", "3.0e-3", "parameters.sample_time_s: 0.002 -> 0.003"),
        ("steps: 5", "steps: 6", "measure.throughput.steps: 5 -> 6"),
        ("warmup_steps: 1", "warmup_steps: 0", "throughput.warmup_steps: 1 -> 0"),
    ],
)
def test_a_change_of_the_fingerprint_is_explained(
    here: Path, old: str, new: str, change: str
) -> None:
    measured_run(here / "runs" / "small")
    path = write(EMULATED.replace(old, new))
    with refused("code_changed") as caught:
        Sweep.read(path).prepared()
    assert change in str(caught.value)
    assert "--accept-changes" in str(caught.value)
    sweep = Sweep.read(path).prepared(accept_changes=True)
    assert sweep.changes
    assert sweep.num_remaining == 8


@pytest.mark.parametrize("ending", [None, failed], ids=["nothing began", "all failed"])
def test_nothing_measured_means_nothing_to_confuse(
    here: Path, ending: Callable[..., Any] | None
) -> None:
    measured_run(here / "runs" / "small", ending=ending)
    sweep = Sweep.read(write(EMULATED.replace("2.0e-3", "3.0e-3"))).prepared()
    assert sweep.changes
    assert sweep.num_remaining == 8


def test_changed_code_changes_the_fingerprint(here: Path) -> None:
    script = here / "runs" / "train.py"
    script.parent.mkdir()
    script.write_text("a = 1\n")
    text = COMMAND.replace("site: {name: hpc, scheduler: slurm, ", "site: {")
    text = text.replace("[1, 2, 4, 8, 16]", "[1, 2]").replace("cuda", "cpu")
    measured_run(here / "runs" / "trained", text)
    (here / "train.py").write_text("a = 1\n")
    assert Sweep.read(write(text)).prepared().num_remaining == 0
    (here / "train.py").write_text("a = 2\n")
    with pytest.raises(SpecError, match=r"code_hash: '\w{12}' -> '\w{12}'"):
        Sweep.read(write(text)).prepared()


def test_accepted_changes_mark_what_was_measured_and_measure_again(
    here: Path,
) -> None:
    store = measured_run(here / "runs" / "small")
    changed = EMULATED.replace("2.0e-3", "3.0e-3")
    asked = Experiment.from_text(changed)
    store.extend(changed, asked.fingerprint(device_type="cpu"), supersedes=True)
    assert [row["validity"] for row in store.rows()] == [["code_changed"]] * 8
    assert store.finished(store.rows()) == []
    for trial in planned_trials(asked)[:3]:
        end_trial(store, asked, trial, completed(trial))
    again = RunStore.open(store.directory)
    rows = again.rows()
    assert [row["validity"] for row in rows] == [["code_changed"]] * 8 + [[]] * 3
    assert {row["attempt"] for row in again.finished(rows)} == {2}
    assert len(again.finished(again.recover())) == 3
    assert again.observations()["validity"].map(len).tolist() == [1] * 8 + [0] * 3
    # going back to what was first asked is a change as well
    with pytest.raises(SpecError, match=r"0\.003 -> 0\.002"):
        Sweep.read(write()).prepared()


def test_a_directory_that_is_no_run_is_refused(here: Path) -> None:
    path = write()
    (here / "runs").mkdir()
    (here / "runs" / "small").write_text("a file")
    with pytest.raises(StoreError, match="is not a run directory"):
        Sweep.read(path).prepared()
    (here / "other").mkdir()
    (here / "other" / "thesis.tex").write_text("")
    with pytest.raises(StoreError, match="is not a run directory"):
        Sweep.read(path, directory="other").prepared()
    assert Sweep.read(path, directory="empty").prepared().num_remaining == 8


@pytest.mark.parametrize(
    ("package", "extra"),
    [("torch", "train"), ("distributed", "run"), ("cryptography", "run")],
)
def test_what_is_not_installed_is_named_before_anything_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    def find(name: str) -> object:
        return None if name == package else find_spec(name)

    monkeypatch.setattr(module, "find_spec", find)
    with pytest.raises(MissingExtraError, match=re.escape(install_command(extra))):
        Sweep.read(write()).prepared()


def test_large_sweeps_ask_first(here: Path) -> None:
    many = "confirm_above: {trials: 7}\n"
    assert "8 trials; confirm_above.trials is 7" in str(
        Sweep.read(write(EMULATED + many)).prepared().question
    )
    measured_run(here / "runs" / "small")
    long = EMULATED.replace("[4, 8]", "[4, 8, 16]") + "confirm_above: {gpu_hours: 0.01}"
    assert "takes about 0.017 emulated GPU-h; " in str(
        Sweep.read(write(long)).prepared().question
    )


def test_a_sweep_that_is_done_starts_no_nodes(here: Path, no_nodes: Any) -> None:
    measured_run(here / "runs" / "small")
    summary = run_sweep(Sweep.read(write()).prepared()).summary
    assert summary.outcomes == {Outcome.COMPLETED: 8}
    assert summary.num_resumed == 8
    assert not summary.unfinished
    shorter = EMULATED.replace("[4, 8]", "4").replace("100000", "200000")
    again = run_sweep(Sweep.read(write(shorter)).prepared()).summary
    assert again.num_resumed == 8
    assert "200000" in RunStore.open(here / "runs" / "small").experiment_text


def test_an_auto_batch_that_is_found_starts_no_nodes(here: Path, no_nodes: Any) -> None:
    auto = EMULATED.replace("[4, 8]", "{at_most: 4}")

    store = measured_run(here / "runs" / "small", auto, ending=None)
    asked = Experiment.from_text(auto)
    site = asked.resolve_site()
    source = module.source_of(asked, site)
    while trial := source.ask():
        end_trial(store, asked, trial, completed(trial))
        source.tell(store.rows()[-1])
    sweep = Sweep.read(write(auto)).prepared()
    assert not sweep.plan.assumes_local_batch
    assert {trial.local_batch_size for trial in sweep.plan.trials} == {4}
    assert sweep.num_remaining == 0
    assert not run_sweep(sweep).summary.unfinished


def test_an_auto_batch_that_is_still_looked_for_is_assumed(here: Path) -> None:
    auto = EMULATED.replace("[4, 8]", "{at_most: 64}")
    store = measured_run(here / "runs" / "small", auto, ending=None)
    asked = Experiment.from_text(auto)
    site = asked.resolve_site()
    first = module.source_of(asked, site).ask()
    assert first is not None
    end_trial(store, asked, first, completed(first))
    assert Sweep.read(write(auto)).prepared().plan.assumes_local_batch
    other = module.source_of(asked, site)
    other.tell(store.rows()[0])
    second = other.ask()
    assert second is not None
    end_trial(store, asked, second, failed(second))
    assert Sweep.read(write(auto)).prepared().plan.assumes_local_batch


def test_a_run_that_another_driver_holds_is_left_alone(
    here: Path, no_nodes: Any
) -> None:
    store = measured_run(here / "runs" / "small")
    sweep = Sweep.read(write()).prepared()
    with store.lease(), pytest.raises(LeaseError):
        run_sweep(sweep)


def test_what_is_asked_reaches_the_driver(
    here: Path, conductor: type[Conductor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "stopped", "the budget is spent")
    starts: list[RunningSweep] = []
    sweep = Sweep.read(write(), retry_failed=True, budget="0.5gpu-h").prepared()
    end = run_sweep(sweep, on_start=starts.append)
    (driver,) = conductor.made
    assert driver.options["account"].budget.amount == 1800
    assert driver.opened.retry_failed
    assert driver.cluster.arguments == (1, 2, "cpu")
    assert "scalelab.training.rank" in driver.cluster.options["preload"]
    assert driver.programs[None].name == "emulated"
    assert end.summary.stopped == "the budget is spent"
    (running,) = starts
    assert running.driver is driver
    assert running.source.total == 8
    assert running.dashboard_link == Nodes.dashboard_link
    header = json.loads((here / "runs" / "small" / "run.json").read_text())
    assert len(header["versions"]) == 1


@pytest.mark.slow
def test_the_code_that_trials_run_is_copied(
    here: Path, conductor: type[Conductor]
) -> None:
    mine = "from scalelab import Workload\n\nclass Mine(Workload): ...\n"
    (here / "mine.py").write_text(mine)
    (here / "other.py").write_text("")
    text = EMULATED.replace(
        "{name: emulated, sample_time_s: 2.0e-3, fixed_time_s: 10.0e-3}", "mine:Mine"
    )
    run_sweep(Sweep.read(write(text)).prepared())
    (driver,) = conductor.made
    copy = Path(driver.programs[None].code_directory)
    assert copy.parent == here / "runs" / "small" / "code"
    assert [path.name for path in copy.iterdir()] == ["mine.py"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_command_keeps_the_name_it_has_in_the_records(
    here: Path, conductor: type[Conductor], begun: bool
) -> None:
    runs = here / "runs"
    runs.mkdir()
    for place in (here, runs):
        (place / "train.py").write_text("")
    text = COMMAND.replace("site: {name: hpc, scheduler: slurm, ", "site: {")
    text = text.replace("[1, 2, 4, 8, 16]", "[1, 2]").replace("cuda", "cpu")
    measured_run(runs / "x", text, ending=completed if begun else None)
    renamed = text.replace("trained", "renamed").replace("[16, 32]", "[16, 32, 64]")
    run_sweep(Sweep.read(write(renamed), directory=runs / "x").prepared())
    (driver,) = conductor.made
    assert driver.programs[None].name == ("trained" if begun else "renamed")


def test_a_rank_that_finds_the_input_wrong_ends_the_sweep(
    here: Path, conductor: type[Conductor], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = (None, "width=0 is wrong.", "width=0 is wrong. Again.")
    monkeypatch.setattr(conductor, "input_errors", errors)
    events: list[Event] = []
    with pytest.raises(SpecError, match=r"^width=0 is wrong\.$"):
        run_sweep(Sweep.read(write()).prepared(), on_event=events.append)
    assert sum(isinstance(event, TrialEnded) for event in events) == 3
    assert conductor.made[0].num_drained == 1


def test_a_refused_trial_ends_no_sweep_in_which_others_were_measured(
    here: Path, conductor: type[Conductor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor, "input_errors", ("width=0 is wrong.",))
    monkeypatch.setattr(conductor, "num_done", 2)  # the refused one among them
    run_sweep(Sweep.read(write()).prepared())
    assert conductor.made[0].num_drained == 0


@pytest.mark.slow
def test_reading_a_plan_loads_neither_torch_nor_dask(here: Path) -> None:
    write()
    code = (
        "from scalelab.running.sweep import Sweep; Sweep.read('experiment.yaml');"
        "import sys; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"torch", "dask", "distributed", "pandas", "scipy"} & set(loaded)
