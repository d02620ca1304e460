"""What trials vary must reach the command."""

from __future__ import annotations

import pytest
from sentences import refused

from scalelab.experiment.command_values import untold_batches
from scalelab.experiment.spec import Experiment
from scalelab.inputs.placeholders import Untold
from scalelab.plan.expand import Plan, plan

HEAD = "name: a\ngpus: 2\nsite: {device_type: cpu, gpus_per_node: 2}\n"
TARGET = "job: {target: val_acc >= 0.5, samples: 1000, samples_per_epoch: 100}\n"
ALL_KINDS = f"measure: {{kind: [throughput, convergence]}}\n{TARGET}"


def planned(text: str) -> Plan:
    experiment = Experiment.from_text(HEAD + text)
    return plan(experiment, experiment.resolve_site())


AXES = {
    "local_batch_size": "local_batch_size: [8, 16]\n",
    "precision": "local_batch_size: 8\nprecision: [fp32, bf16]\n",
    "parallelism": "local_batch_size: 8\nparallelism: [ddp, fsdp]\n",
    "learning_rate": "local_batch_size: 8\n"
    "learning_rate: {base: 0.1, at_batch: 8, rule: [linear, none]}\n" + ALL_KINDS,
    "seed": f"local_batch_size: 8\nseed: [0, 1]\n{ALL_KINDS}",
}


@pytest.mark.parametrize(("axis", "text"), AXES.items())
def test_an_axis_that_the_command_is_not_told_of_is_refused(
    axis: str, text: str
) -> None:
    variable = f"SCALELAB_{axis.upper()}"
    with refused("axis_not_received", f"{{{axis}}}", variable) as caught:
        planned(f"command: python a.py\n{text}")
    assert str(caught.value).startswith(axis)


@pytest.mark.parametrize(("axis", "text"), AXES.items())
@pytest.mark.parametrize("way", ["placeholder", "env", "uses"])
def test_a_command_that_is_told_of_its_axes_is_planned(
    axis: str, text: str, way: str
) -> None:
    told = {
        "placeholder": f"command: python a.py {{{axis}}}\n",
        "env": f"command: python a.py\nenv: {{VALUE: '{{{axis}}}'}}\n",
        "uses": f"command: python a.py\nuses: [SCALELAB_{axis.upper()}]\n",
    }
    assert len(planned(told[way] + text).trials) > 2


def test_a_batch_that_is_looked_for_must_be_told() -> None:
    with refused("axis_not_received", "local_batch_size", "(auto)"):
        planned("command: python a.py\nlocal_batch_size: auto\n")
    assert planned("command: python a.py {local_batch_size}\nlocal_batch_size: auto")


def test_a_global_batch_alone_does_not_tell_two_local_batches_apart() -> None:
    batches = "local_batch_size: [8, 16]\nglobal_batch_size: 64\n"
    with refused("axis_not_received", "local_batch_size", "(8, 16)"):
        planned(f"command: python a.py {{global_batch_size}}\n{batches}")
    both = "{local_batch_size} {global_batch_size}"
    assert planned(f"command: python a.py {both}\n{batches}").trials


def test_a_rate_that_only_follows_the_batch_may_be_scaled_by_the_command() -> None:
    rates = "learning_rate: {base: 0.1, at_batch: 8, rule: linear}\n"
    batches = "local_batch_size: [8, 16]\n"
    command = "command: python a.py {local_batch_size}"
    with refused("axis_not_received", "learning_rate"):
        planned(f"{command}\n{batches}{rates}{ALL_KINDS}")
    told = f"{command} {{base_learning_rate}}\n{batches}{rates}{ALL_KINDS}"
    assert planned(told).trials
    assert planned(f"{command}\n{batches}{rates}").trials  # no time depends on it


def test_a_program_may_share_one_global_batch_among_its_ranks_by_itself() -> None:
    text = "gpus: [1, 2]\nglobal_batch_size: 64\n"
    head = HEAD.replace("gpus: 2\n", "")
    experiment = Experiment.from_text(f"{head}command: python a.py --batch 64\n{text}")
    found = plan(experiment, experiment.resolve_site()).trials
    assert {trial.local_batch_size for trial in found} == {32, 64}


@pytest.mark.parametrize("name", ["warmup_samples", "base_learning_rate"])
def test_what_only_a_learning_rate_has_needs_one(name: str) -> None:
    with refused("no_learning_rate", f"{{{name}}}"):
        planned(f"command: python a.py {{{name}}}\nlocal_batch_size: 8\n")


def test_one_value_of_each_axis_need_not_be_told() -> None:
    text = "local_batch_size: 8\nprecision: bf16\nseed: 3\nlearning_rate: 0.1\n"
    assert planned(f"command: python a.py\n{text}").trials


def test_an_option_may_be_read_from_the_environment() -> None:
    text = "command: python a.py\nlocal_batch_size: 8\noptions: {depth: [2, 4]}\n"
    with refused("axis_changes_nothing", "options.depth", "SCALELAB_DEPTH"):
        planned(text)
    assert planned(f"{text}uses: SCALELAB_DEPTH\n").trials


def test_a_variable_that_no_command_finds_is_refused() -> None:
    text = "command: python a.py\nlocal_batch_size: 8\nuses: [SCALELAB_LOCAL_BATCH]\n"
    with refused("unknown_variable", "SCALELAB_LOCAL_BATCH"):
        planned(text)
    workload = "workload: digits_mlp\nlocal_batch_size: 8\nuses: [SCALELAB_SEED]\n"
    with refused("key_of_command", "uses"):
        planned(workload)


@pytest.mark.parametrize(
    ("text", "untold"),
    [
        ("command: a", {Untold.LOCAL_BATCH, Untold.ACCUMULATION}),
        ("command: a {local_batch_size}", {Untold.ACCUMULATION}),
        ("command: a {gradient_accumulation_steps}", {Untold.LOCAL_BATCH}),
        ("command: a {global_batch_size}", set()),
        (
            "command: a\nuses: [SCALELAB_LOCAL_BATCH_SIZE]",
            {Untold.ACCUMULATION},
        ),
    ],
)
def test_it_is_known_what_a_command_is_not_told_of_its_batches(
    text: str, untold: set[Untold]
) -> None:
    experiment = Experiment.from_text(f"{HEAD}local_batch_size: 8\n{text}\n")
    assert untold_batches(experiment) == {None: untold}


def test_what_scalelab_trains_itself_is_told_everything() -> None:
    text = "workload: digits_mlp\nlocal_batch_size: 8\n"
    assert untold_batches(Experiment.from_text(HEAD + text)) == {}
