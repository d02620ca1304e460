"""Several programs in one experiment: an axis whose values are command lines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned_trials import planned_trials
from sentences import refused

from scalelab.experiment.fingerprint import fingerprint_changes
from scalelab.experiment.program import CommandProgram
from scalelab.experiment.spec import Experiment
from scalelab.plan.expand import plan
from scalelab.plan.tracked import source_of
from scalelab.records.code import code_hash, code_of_programs

TEXT = """
name: frameworks
program:
  - name: torch
    command: python a.py --batch {local_batch_size}
    env: {BACKEND: gloo, THREADS: 2}
  - name: keras-3.15
    command: python b.py --batch {global_batch_size}
    launcher: none
    metrics: keras
    uses: [SCALELAB_SEED]
env: {THREADS: 1}
metrics: {regex: 'step (?P<step>[0-9]+)'}
measure: {repeats: 2}
gpus: [1, 2]
local_batch_size: 16
site: {device_type: cpu, gpus_per_node: 2}
"""


def changed(**keys: Any) -> str:
    """Return the experiment with other keys; a key that is None is left out."""
    values = {**yaml.safe_load(TEXT), **keys}
    return yaml.safe_dump({k: v for k, v in values.items() if v is not None})


def with_second(**keys: Any) -> str:
    """Return the experiment with other keys of its second program."""
    first, second = yaml.safe_load(TEXT)["program"]
    own = {k: v for k, v in {**second, **keys}.items() if v is not None}
    return changed(program=[first, own])


def planned(text: str) -> list[str | None]:
    asked = Experiment.from_text(text)
    return [trial.program for trial in planned_trials(asked)]


def test_each_trial_runs_one_of_them() -> None:
    assert planned(TEXT).count("torch") == planned(TEXT).count("keras-3.15") == 4
    asked = Experiment.from_text(TEXT)
    trials = planned_trials(asked)
    assert len({trial.trial_id for trial in trials}) == 8
    assert {trial.workload for trial in trials} == {"command"}
    assert trials[0].further_axes == {"program": trials[0].program}


def test_a_program_takes_what_it_does_not_say_from_the_experiment() -> None:
    torch, keras = Experiment.from_text(TEXT).programs(Path("/code")).values()
    assert isinstance(torch, CommandProgram)
    assert isinstance(keras, CommandProgram)
    assert (torch.launcher, keras.launcher) == ("torchrun", "none")
    assert torch.env == {"THREADS": "2", "BACKEND": "gloo"}
    assert keras.env == {"THREADS": "1"}
    assert torch.metrics.regex == ("step (?P<step>[0-9]+)",)
    assert keras.metrics.evaluation == (" - val_",)
    assert torch.name == keras.name == "frameworks"


def test_one_command_has_the_id_that_it_always_had() -> None:
    asked = Experiment.from_text(TEXT)
    trial = planned_trials(asked)[0]
    alone = Experiment.from_text(
        changed(program=None, command="python a.py --batch {local_batch_size}")
    )
    single = planned_trials(alone)[0]
    assert single.program is None
    assert single.further_axes == {}
    assert replace(trial, program=None).trial_id == single.trial_id != trial.trial_id


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        (changed(program=[]), "no_programs", "program"),
        (changed(command="python a.py"), "not_one_program", "command and program"),
        (changed(workload="digits_mlp"), "not_one_program", "workload and program"),
        (changed(program=None), "not_one_program", "workload and command"),
        (with_second(name="torch"), "program_name_twice", "torch"),
        (with_second(name="two words"), "string_pattern_mismatch", "program[1].name"),
        (with_second(name=None), "missing", "program[1].name"),
        (with_second(command=None), "missing", "program[1].command"),
        (with_second(comand="x"), "extra_forbidden", "program[1].comand"),
        (changed(program="torch"), "tuple_type", "program='torch'"),
        (with_second(command="b {batch}"), "unknown_placeholder", "keras-3.15"),
        (with_second(metrics={"regex": "loss x"}), "no_group_of_step", "loss x"),
        (with_second(env={"A B": 1}), "no_variable_name", "program[1].env"),
        (with_second(uses="SCALELAB_X"), "unknown_variable", "keras-3.15"),
        (changed(options={"program": ["a", "b"]}), "option_named_program", "program"),
        (changed(options={"depth": [20, 44]}), "axis_changes_nothing", "torch"),
        (changed(env_from=["BACKEND"]), "variable_said_twice", "torch"),
        (
            changed(seed=[0, 1], measure={"kind": "convergence", "max_samples": 9})
            + "job: {target: val_acc >= 1, samples_per_epoch: 9}",
            "no_group_of_metric",
            "program torch",
        ),
        (changed(seed=[0, 1], product=True), "axis_not_received", "program torch"),
        (with_second(launcher="nobody"), "unknown_kind", "program keras-3.15"),
        (
            with_second(launcher="mpirun", command="p {local_rank} {local_batch_size}"),
            "rank_before_start",
            "program keras-3.15",
        ),
        (
            changed(
                gpus=[4], site={"device_type": "cpu", "gpus_per_node": 2, "nodes": 2}
            ),
            "launcher_of_one_node",
            "program=keras-3.15",
        ),
    ],
)
def test_what_could_not_run_is_refused_before_it_does(
    text: str, code: str, value: str
) -> None:
    with refused(code, value):
        asked = Experiment.from_text(text)
        source_of(asked, asked.resolve_site())


def test_combinations_are_counted_with_the_programs() -> None:
    asked = Experiment.from_text(changed(measure={"repeats": 1000}, gpus=[1] * 1))
    assert len(plan(asked, asked.resolve_site()).trials) >= 2000
    many = [{"name": f"p{i}", "command": "p {local_batch_size}"} for i in range(60)]
    much = Experiment.from_text(
        changed(program=many, measure={"repeats": 1000}, gpus=[1, 2])
    )
    with refused("too_many_trials", "100,000"):
        plan(much, much.resolve_site())


def test_another_program_extends_a_run_and_a_changed_one_does_not(
    tmp_path: Path,
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)

    def fingerprint(text: str) -> dict[str, Any]:
        asked = Experiment.from_text(text, directory=tmp_path)
        return asked.fingerprint(
            code_hash=code_hash(asked), code_of_programs=code_of_programs(asked)
        )

    before = fingerprint(TEXT)
    first, second = yaml.safe_load(TEXT)["program"]
    third = {**first, "name": "third", "env": {}}
    assert fingerprint_changes(before, fingerprint(changed(program=[first]))) == ()
    more = fingerprint(changed(program=[third, second, first]))
    assert fingerprint_changes(before, more) == ()
    (other,) = fingerprint_changes(before, fingerprint(with_second(launcher="mpi")))
    assert str(other) == "program.keras-3.15.launcher: 'none' -> 'mpi'"
    secret = fingerprint(with_second(env={"KEY": "secret"}))
    (own,) = fingerprint_changes(before, secret)
    assert str(own) == "program.keras-3.15.env.KEY: added"
    (tmp_path / "b.py").write_text("other code")
    (change,) = fingerprint_changes(before, fingerprint(TEXT))
    assert change.key == "program.keras-3.15.code_hash"
    alone = fingerprint(changed(program=None, command=first["command"]))
    assert any("command" in str(each) for each in fingerprint_changes(before, alone))
