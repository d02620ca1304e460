import json

import pytest

from scalelab.experiment.fingerprint import fingerprint_changes
from scalelab.experiment.program import (
    CommandProgram,
    MetricsSource,
    Program,
    WorkloadProgram,
    program_from_json,
    program_to_json,
)
from scalelab.experiment.spec import Experiment
from scalelab.inputs.placeholders import (
    PLACEHOLDERS,
    fill_placeholders,
    placeholders_in,
)


@pytest.mark.parametrize(
    "program",
    [
        WorkloadProgram(name="digits_mlp", parameters={"hidden_sizes": [8]}),
        WorkloadProgram(name="mine:Workload", code_directory="/code"),
        CommandProgram(
            command="python a.py",
            launcher="torchrun",
            env={"A": "1"},
            metrics=MetricsSource(regex=("(?P<loss>.)",)),
            code_directory="/code",
        ),
    ],
    ids=["built-in", "own", "command"],
)
def test_a_program_survives_json(program: Program) -> None:
    assert (
        program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    )


def test_only_words_in_braces_are_placeholders() -> None:
    template = "run {seed} ${HOME} ${seed} {a b} {} {1} '{\"x\": 1}' {learning_rate}"

    assert placeholders_in(template) == ["seed", "learning_rate"]


def test_placeholders_are_filled_and_the_rest_stays() -> None:
    filled = fill_placeholders("a {seed} ${seed} {other} {trial_dir}", {"seed": 3})

    assert filled == "a 3 ${seed} {other} {trial_dir}"


def test_every_placeholder_says_what_it_is() -> None:
    assert all(PLACEHOLDERS.values())


def test_an_experiment_without_the_probe_says_so_in_its_fingerprint() -> None:
    text = "{name: a, command: python t.py, gpus: 1, local_batch_size: 8%s}"
    probed = Experiment.from_text(text % "")
    unprobed = Experiment.from_text(text % ", probe: none")
    programs = [each.programs()[None] for each in (probed, unprobed)]
    assert [program_to_json(each).get("without_probe") for each in programs] == [
        None,
        True,
    ]
    assert "probe" not in probed.fingerprint()
    changes = fingerprint_changes(probed.fingerprint(), unprobed.fingerprint())
    assert [change.key for change in changes] == ["probe"]
