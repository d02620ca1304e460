"""Trials of layouts: what fits, its batches, what commands are told of."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from command_lines import blocks
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.command_values import placeholder_values
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.layout import Layout
from scalelab.plan.expand import Plan, plan
from scalelab.plan.planned import PlannedTrials
from scalelab.site.choice import site_of

DOCS = Path(__file__).parents[2] / "docs"

COMMAND = """\
name: a
command: >-
  train {tensor_parallel_size} {pipeline_parallel_size} {context_parallel_size}
  {expert_parallel_size} {data_shard_size} {local_batch_size} {global_batch_size}
measure: {long_trial: none, repeats: 1, canary_every: 0}
site: {device_type: cpu, nodes: 2, gpus_per_node: 4}
"""
BATCHES = "local_batch_size: 2\nglobal_batch_size: 32\n"


def asked(text: str, head: str = COMMAND) -> Experiment:
    return Experiment.from_text(head + text)


def planned(text: str, head: str = COMMAND) -> Plan:
    experiment = asked(text, head)
    return plan(experiment, experiment.resolve_site())


def degrees(trial: Trial) -> tuple[int, int, int]:
    assert trial.layout is not None
    return (trial.world_size, trial.layout.tensor, trial.layout.pipeline)


def told(trial: Trial) -> dict[str, object]:
    return placeholder_values(trial, devices_on_node=4, directory="")


def test_every_combination_that_fits_is_run_and_the_others_are_said() -> None:
    found = planned(
        f"gpus: [1, 4, 8]\nlayout: {{tensor: [1, 4], pipeline: [1, 2]}}\n{BATCHES}"
    )

    assert [degrees(trial) for trial in found.trials] == [
        (1, 1, 1),
        (4, 1, 1),
        (8, 1, 1),
        (4, 1, 2),
        (8, 1, 2),
        (4, 4, 1),
        (8, 4, 1),
        (8, 4, 2),
    ]
    start = "layout: tensor={} x pipeline={} x context=1 (={}) does not divide {}."
    assert [reason.partition(". ")[0] + "." for reason in found.left_out] == [
        start.format(1, 2, 2, "1 device"),
        start.format(4, 1, 4, "1 device"),
        start.format(4, 2, 8, "1 device"),
        start.format(4, 2, 8, "4 devices"),
    ]


def test_batches_by_hand_where_micro_batches_are_accumulated() -> None:
    (trial,) = planned(
        "gpus: 8\nlayout: {tensor: 2, pipeline: 2, data: {replicate: 2, shard: rest}}\n"
        + BATCHES
    ).trials

    # 8 devices / (2 x 2) are 2 replicas; 32 samples / (2 replicas x 2) are 8 passes.
    assert trial.data_parallel_size == 2
    assert trial.gradient_accumulation_steps == 8
    assert trial.global_batch_size == 2 * 2 * 8 == 32
    values = told(trial)
    assert values["micro_batch_size"] == 2
    assert values["data_replicate_size"] == 2
    assert values["data_shard_size"] == 1
    assert values["accumulation_steps_of_all_ranks"] == 16
    assert "batch_size_per_node" not in values


def test_batches_by_hand_where_the_program_splits_the_local_batch() -> None:
    found = planned(
        "gpus: 8\nlayout: {pipeline: [2, 4], micro_batches: split}\n"
        "local_batch_size: [2, 8]\n"
    )

    by_stages = {degrees(trial)[2]: trial for trial in found.trials[1:]}
    # 8 samples are 4 micro-batches of 2, or 2 of 4; 2 samples are too few for 4.
    assert told(by_stages[4])["micro_batch_size"] == 2
    assert told(by_stages[2])["micro_batch_size"] == 4
    assert [trial.global_batch_size for trial in found.trials] == [8, 32, 16]
    (left_out,) = found.left_out
    assert left_out.startswith("layout: local_batch_size=2 has less than a sample")


def test_experts_divide_the_data_parallel_ranks() -> None:
    found = planned(f"gpus: [4, 8]\nlayout: {{tensor: 2, expert: [1, 4]}}\n{BATCHES}")

    parallel = [(t.world_size, t.data_parallel_size) for t in found.trials]
    assert parallel == [(4, 2), (8, 4), (8, 4)]
    assert [t.layout.expert for t in found.trials if t.layout] == [1, 1, 4]


def test_a_layer_is_divided_across_nodes_only_where_that_is_allowed() -> None:
    text = f"gpus: 8\n{BATCHES}layout: {{tensor: 8"
    with refused("layer_across_nodes", "tensor=8", "4 devices"):
        planned(text + "}")

    (trial,) = planned(text + ", tensor_across_nodes: true}").trials
    assert trial.data_parallel_size == 1
    (inside,) = planned(f"gpus: 8\n{BATCHES}layout: {{tensor: 4}}").trials
    across = f"gpus: 8\n{BATCHES}layout: {{tensor: 4, tensor_across_nodes: true}}"
    assert [t.trial_id for t in planned(across).trials] == [inside.trial_id]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("{tensor: [1, 3]}", "layout: tensor=3 x pipeline=1 x context=1 (=3) does not"),
        ("{expert: [1, 16]}", "layout: expert=16 does not divide data_parallel_size=8"),
        ("{data: {shard: [4, 3]}}", "layout: data.shard=3 does not divide"),
    ],
)
def test_a_degree_that_fits_nowhere_is_refused(layout: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
        planned(f"gpus: 8\nlayout: {layout}\n{BATCHES}")


TELLERS = {
    "tensor": ["tensor_parallel_size"],
    "pipeline": ["pipeline_parallel_size"],
    "context": ["context_parallel_size"],
    "expert": ["expert_parallel_size"],
    "replicate": ["data_replicate_size", "data_shard_size"],
    "shard": ["data_replicate_size", "data_shard_size"],
}


@pytest.mark.parametrize("axis", TELLERS)
def test_an_axis_of_the_layout_that_the_command_is_not_told_of_is_refused(
    axis: str,
) -> None:
    is_group = axis in ("replicate", "shard")
    listed = f"{{data: {{{axis}: [1, 2]}}}}" if is_group else f"{{{axis}: [1, 2]}}"
    text = f"gpus: 4\nlayout: {listed}\n{BATCHES}"
    head = "name: a\nsite: {device_type: cpu, gpus_per_node: 4}\n"
    batches = "{local_batch_size} {global_batch_size}"
    with pytest.raises(SpecError, match=rf"layout: {axis}=\[1, 2\] would change noth"):
        planned(text, f"{head}command: train {batches}\n")
    for name in TELLERS[axis]:
        named = planned(text, f"{head}command: train {batches} {{{name}}}\n")
        read = f"{head}command: train {batches}\nuses: [SCALELAB_{name.upper()}]\n"
        assert named.trials == planned(text, read).trials
        assert len({trial.layout for trial in named.trials}) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "command: t {tensor_parallel_size} {local_batch_size}\n",
            "command holds {tensor_parallel_size}, which has a value only where the "
            "experiment has a layout. Add, for example, layout: {tensor: [1, 2], "
            "pipeline: 2}.",
        ),
        (
            "command: t {batch_size_per_node}\nlayout: {tensor: 2}\n",
            "the command uses {batch_size_per_node}, but with a layout the ranks of a "
            "node may see the same samples. Use {local_batch_size}, the samples per "
            "replica, or {global_batch_size}.",
        ),
        (
            "command: t {local_batch_size}\nlayout: {}\n"
            "options: {data_shard_size: [1, 2]}\n",
            "options.data_shard_size is a placeholder of its own. Rename the axis, or "
            "use the experiment's own key.",
        ),
        (
            "workload: digits_mlp\nlayout: {tensor: 2}\n",
            "layout belongs to a command, not to a workload. Remove it.",
        ),
        (
            "command: t\nlayout: {data: 4}\n",
            "layout.data: 4 is not known. Write rest: the number of data-parallel "
            "ranks follows from gpus and the other degrees. Or say how they are "
            "grouped: {replicate: 2, shard: rest}.",
        ),
        (
            "command: t\nlayout: {data: {replicate: 2, shard: 2}}\n",
            "layout.data: replicate and shard are both numbers. One of them must be "
            "rest, since their product follows from gpus and the other degrees.",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=f": {re.escape(message)}$"):
        asked(text + "gpus: 4\nlocal_batch_size: 2\n", "name: a\n")


def test_an_axis_of_that_name_is_an_axis_where_there_is_no_layout() -> None:
    found = planned(
        "gpus: 2\nlocal_batch_size: 2\noptions: {tensor_parallel_size: [1, 2]}\n",
        "name: a\ncommand: t {tensor_parallel_size}\n",
    )
    assert {trial.data_parallel_size for trial in found.trials} == {2}


def test_the_layout_is_part_of_the_identity_and_survives_json() -> None:
    (plain,) = planned(
        f"gpus: 8\n{BATCHES}",
        "name: a\ncommand: t {global_batch_size}\n"
        "measure: {long_trial: none, repeats: 1, canary_every: 0}\n"
        "site: {device_type: cpu, gpus_per_node: 8}\n",
    ).trials
    split = dataclasses.replace(plain, layout=Layout(tensor=2, pipeline=2))
    other = dataclasses.replace(plain, layout=Layout(tensor=4))

    assert plain.layout is None
    assert len({plain.trial_id, split.trial_id, other.trial_id}) == 3
    assert split.trial_id == "ab88cbc8dc1b"
    for trial in (plain, split):
        assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial


def test_one_copy_and_a_later_list_of_copies_name_the_same_trial() -> None:
    (rest,) = planned(f"gpus: 8\nlayout: {{data: rest}}\n{BATCHES}").trials
    listed = planned(
        f"gpus: 8\nlayout: {{data: {{replicate: [1, 2], shard: rest}}}}\n{BATCHES}"
    ).trials
    assert rest.trial_id == listed[0].trial_id
    assert len(listed) == 2


def test_convergence_runs_once_whatever_the_layout() -> None:
    found = planned(
        f"gpus: [4, 8]\nlayout: {{tensor: [1, 2], pipeline: [1, 2]}}\n{BATCHES}"
        "job: {target: val_acc >= 0.5, samples: 1000}\n"
        "measure: {kind: convergence, batch_norm: false, max_samples: 1000, "
        "evaluate_every_samples: 100}\n",
        COMMAND.replace(
            "measure: {long_trial: none, repeats: 1, canary_every: 0}\n", ""
        ),
    )
    (trial,) = found.trials
    assert trial.kind is TrialKind.CONVERGENCE


def test_an_auto_batch_is_looked_for_on_what_each_layout_can_use() -> None:
    experiment = asked(
        "gpus: [2, 4]\nlayout: {tensor: [1, 2, 4], pipeline: [1, 2]}\n"
        "local_batch_size: {at_most: 8}\n"
    )
    source = PlannedTrials(experiment, experiment.resolve_site())
    looked: dict[tuple[int, int, int], Trial] = {}
    while source.plan.assumes_local_batch and (trial := source.ask()):
        looked[degrees(trial)] = trial
        source.tell({"trial_id": trial.trial_id, "outcome": "completed"})

    assert set(looked) == {(2, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 4, 1)}
    assert {trial.local_batch_size for trial in source.plan.trials} == {8}
    assert source.plan.left_out[-1].startswith(
        "layout: tensor=4 x pipeline=2 x context=1 (=8) does not divide"
    )


def test_the_experiment_that_the_page_shows_can_be_planned() -> None:
    (text,) = blocks((DOCS / "layouts.md").read_text(), "yaml")
    site = site_of({"device_type": "cuda", "nodes": 8, "gpus_per_node": 8})
    found = plan(Experiment.from_text(text), site)
    assert len({trial.layout for trial in found.trials}) == 4 * 3
