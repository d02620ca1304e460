"""Several programs in one experiment: an axis whose values are command lines."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from planned_trials import planned_trials

from scalelab.errors import SpecError
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
    ("text", "message"),
    [
        (changed(program=[]), "program is empty. List programs"),
        (
            changed(command="python a.py"),
            "command and program are both given. An experiment runs exactly one",
        ),
        (
            changed(workload="digits_mlp"),
            "workload and program are both given. An experiment runs exactly one",
        ),
        (changed(program=None), "workload and command are both missing"),
        (
            with_second(name="torch"),
            "the name torch stands there twice, but it tells curves apart",
        ),
        (with_second(name="two words"), "program[1].name='two words' has the wrong"),
        (with_second(name=None), "program[1].name is missing"),
        (with_second(command=None), "program[1].command is missing"),
        (
            with_second(comand="x"),
            "unknown key 'program[1].comand'. Did you mean 'command'?",
        ),
        (
            changed(program="torch"),
            "program='torch' must be one value or a list of values",
        ),
        (
            with_second(command="python b.py {batch}"),
            "program keras-3.15: command holds {batch}, which is no placeholder",
        ),
        (
            with_second(metrics={"regex": "loss x"}),
            "metrics.regex=loss x has no group named step",
        ),
        (with_second(env={"A B": 1}), "program[1].env: 'A B' is no name of"),
        (
            with_second(uses="SCALELAB_X"),
            "program keras-3.15: uses: 'SCALELAB_X' is no variable",
        ),
        (
            changed(options={"program": ["a", "b"]}),
            "options.program has the name of the axis of programs",
        ),
        (
            changed(options={"depth": [20, 44]}),
            "program torch: options.depth would change nothing",
        ),
        (
            changed(env_from=["BACKEND"]),
            "program torch: BACKEND is under env and under env_from",
        ),
    ],
)
def test_what_is_wrong_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Experiment.from_text(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed(seed=[0, 1], measure={"kind": "convergence", "max_samples": 9})
            + "job: {target: val_acc >= 1, samples_per_epoch: 9}",
            "program torch: metrics.regex has no group named val_acc, the metric of",
        ),
        (
            changed(seed=[0, 1], product=True),
            "program torch: seed varies between trials (0, 1), but the command does",
        ),
        (
            with_second(launcher="nobody"),
            "program keras-3.15: launcher='nobody' is not known",
        ),
        (
            with_second(launcher="mpirun", command="p {local_rank} {local_batch_size}"),
            "program keras-3.15: launcher=mpirun starts and numbers the ranks by",
        ),
        (
            changed(
                gpus=[4], site={"device_type": "cpu", "gpus_per_node": 2, "nodes": 2}
            ),
            "the trial of program=keras-3.15 on 4 devices",
        ),
    ],
)
def test_what_could_not_run_is_refused_before_it_does(text: str, message: str) -> None:
    asked = Experiment.from_text(text)
    with pytest.raises(SpecError) as caught:
        source_of(asked, asked.resolve_site())
    assert message in str(caught.value)


def test_combinations_are_counted_with_the_programs() -> None:
    asked = Experiment.from_text(changed(measure={"repeats": 1000}, gpus=[1] * 1))
    assert len(plan(asked, asked.resolve_site()).trials) >= 2000
    many = [{"name": f"p{i}", "command": "p {local_batch_size}"} for i in range(60)]
    much = Experiment.from_text(
        changed(program=many, measure={"repeats": 1000}, gpus=[1, 2])
    )
    with pytest.raises(SpecError, match="more than 100,000 trials"):
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
