from collections import Counter

import pytest
from planned_trials import planned_trials
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.plan.configurations import configurations, setups
from scalelab.plan.expand import Plan, plan
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "nodes": 4, "gpus_per_node": 4})
HEAD = "name: a\nworkload: digits_mlp\nlearning_rate: 0.1\n"
CONVERGENCE = (
    "measure: {kind: convergence, max_samples: 100, evaluate_every_samples: 10}\n"
    "job: {target: a >= 1}\n"
)


def planned(text: str, head: str = HEAD) -> Plan:
    return plan(Experiment.from_text(head + text), SITE)


def shapes(trials: tuple[Trial, ...]) -> list[tuple[int, int, int]]:
    return [
        (t.world_size, t.local_batch_size, t.gradient_accumulation_steps)
        for t in trials
    ]


def test_weak_scaling_holds_the_local_batch() -> None:
    trials = planned(
        "gpus: [1, 2, 8]\nlocal_batch_size: [16, 32]\nmeasure: {repeats: 1}"
    ).trials

    assert shapes(trials) == [
        (1, 16, 1),
        (1, 32, 1),
        (2, 16, 1),
        (2, 32, 1),
        (8, 16, 1),
        (8, 32, 1),
    ]


def test_strong_scaling_holds_the_global_batch() -> None:
    trials = planned(
        "gpus: [1, 2, 8]\nglobal_batch_size: 64\nmeasure: {repeats: 1}"
    ).trials

    assert shapes(trials) == [(1, 64, 1), (2, 32, 1), (8, 8, 1)]


def test_accumulation_makes_up_for_missing_devices() -> None:
    trials = planned(
        "gpus: [1, 2, 8]\nglobal_batch_size: 64\nlocal_batch_size: 8\n"
        "measure: {repeats: 1}"
    ).trials

    assert shapes(trials) == [(1, 8, 8), (2, 8, 4), (8, 8, 1)]
    assert {trial.global_batch_size for trial in trials} == {64}


def test_accumulation_can_be_asked_for() -> None:
    trials = planned(
        "gpus: [1, 2]\nlocal_batch_size: 8\ngradient_accumulation_steps: 4\n"
        "measure: {repeats: 1}"
    ).trials

    assert [trial.global_batch_size for trial in trials] == [32, 64]


def test_repeats_are_interleaved() -> None:
    trials = planned("gpus: [1, 2]\nlocal_batch_size: [8, 16]").trials

    assert [trial.repeat for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    assert shapes(trials[:4]) == shapes(trials[4:8]) == shapes(trials[8:])


def test_throughput_does_not_multiply_with_seeds_and_rules() -> None:
    text = (
        "gpus: [1, 2]\nlocal_batch_size: 8\nseed: [3, 4, 5]\n"
        "learning_rate: {base: 0.1, at_batch: 8, rule: [sqrt, linear]}\n"
    )
    trials = planned(text, "name: a\nworkload: digits_mlp\n").trials

    assert len(trials) == 2 * 3
    assert {trial.seed for trial in trials} == {3}
    assert {t.learning_rate.rule for t in trials if t.learning_rate} == {"sqrt"}


def test_convergence_runs_once_per_global_batch_rule_and_seed() -> None:
    text = (
        "gpus: [1, 2, 4]\nlocal_batch_size: 8\nseed: [0, 1]\n"
        "learning_rate: {base: 0.1, at_batch: 8, rule: [sqrt, linear]}\n" + CONVERGENCE
    )
    trials = planned(text, "name: a\nworkload: digits_mlp\n").trials

    assert len(trials) == 3 * 2 * 2
    assert {trial.world_size for trial in trials} == {1}
    assert Counter(trial.global_batch_size for trial in trials) == {8: 4, 16: 4, 32: 4}
    assert {trial.repeat for trial in trials} == {0}


def test_the_normalisation_batch_is_held_where_there_is_batch_norm() -> None:
    text = "gpus: [1, 2, 4]\nglobal_batch_size: 64\n" + CONVERGENCE
    held = planned(text, "name: a\nworkload: resnet_cifar\n").trials
    free = planned(text).trials

    assert shapes(held) == [(1, 16, 4), (1, 32, 2), (1, 64, 1)]
    assert shapes(free) == [(1, 64, 1)]


def test_synchronised_batch_norm_needs_the_ranks_it_is_meant_for() -> None:
    text = "gpus: [1, 2, 4]\nlocal_batch_size: [8, 16]\n" + CONVERGENCE
    head = "name: a\nworkload: {name: resnet_cifar, sync_batch_norm: true}\n"
    trials = planned(text, head).trials

    # 2 x 8 and 1 x 16 samples are one statistic of 16, and so on.
    assert shapes(trials) == [(1, 8, 1), (1, 16, 1), (2, 16, 1), (4, 16, 1)]


def test_convergence_may_use_more_devices() -> None:
    wide = CONVERGENCE.replace("max_samples", "convergence_gpus: 3, max_samples")
    text = "gpus: [1, 2, 4, 8]\nlocal_batch_size: 8\n" + wide
    trials = planned(text, "name: a\nworkload: resnet_cifar\n").trials

    assert shapes(trials) == [(1, 8, 1), (2, 8, 1), (2, 8, 2), (2, 8, 4)]


def test_convergence_runs_on_what_is_listed() -> None:
    trials = planned("gpus: [4, 8]\nlocal_batch_size: 8\n" + CONVERGENCE).trials

    assert shapes(trials) == [(4, 8, 1), (4, 8, 2)]


def test_one_experiment_holds_several_families() -> None:
    kinds = "{kind: [throughput, convergence, end_to_end], max_samples: 9"
    text = CONVERGENCE.replace("{kind: convergence, max_samples: 100", kinds)
    found = planned("gpus: [1, 2]\nlocal_batch_size: 8\nseed: [0, 1]\n" + text)

    kinds_of_trials = Counter(trial.kind.value for trial in found.trials)
    assert kinds_of_trials == {"throughput": 6, "convergence": 4, "end_to_end": 2}
    last = found.trials[-1]
    assert last.kind is TrialKind.END_TO_END
    assert last.measurement.max_samples == 9


def test_product_is_the_full_grid() -> None:
    text = (
        "gpus: [1, 2, 4]\nlocal_batch_size: [8, 16]\nseed: [0, 1]\nproduct: true\n"
        + CONVERGENCE
    )

    assert len(planned(text).trials) == 3 * 2 * 2


def test_every_other_axis_multiplies() -> None:
    found = planned(
        "gpus: 1\nlocal_batch_size: 8\nprecision: [fp32, bf16]\n"
        "options: {feed: [a, b, c], compile: [true, false]}\nmeasure: {repeats: 1}"
    ).trials

    assert len(found) == len({trial.trial_id for trial in found}) == 2 * 3 * 2
    assert found[0].options == {"compile": True, "feed": "a"}


def test_explicit_nodes_are_a_grid() -> None:
    found = planned(
        "nodes: [1, 2]\ngpus_per_node: [2, 4]\nlocal_batch_size: 8\n"
        "measure: {repeats: 1}"
    ).trials

    assert [str(trial.allocation) for trial in found] == ["1x2", "1x4", "2x2", "2x4"]


def test_gpus_are_packed_on_the_nodes_of_the_site() -> None:
    found = planned("gpus: [4, 6]\nlocal_batch_size: 8").trials

    assert found[0].allocation == Allocation(devices_per_node=(4,))
    assert found[1].allocation == Allocation(devices_per_node=(4, 2))


def test_the_same_text_gives_the_same_trials() -> None:
    text = "gpus: [1, 2]\nlocal_batch_size: [8, 16]\noptions: {b: [1], a: [2]}"

    assert planned(text).trials == planned(text).trials


def test_allocations_that_pack_alike_are_one() -> None:
    found = planned(
        "nodes: [1, 2]\ngpus_per_node: 1\nlocal_batch_size: 8\nmeasure: {repeats: 1}"
    ).trials
    again = planned("gpus: [1]\nlocal_batch_size: 8\nmeasure: {repeats: 1}").trials

    assert found[0].trial_id == again[0].trial_id


class TestWhatDoesNotDivide:
    def test_a_combination_is_left_out_and_said_so(self) -> None:
        found = planned(
            "gpus: [1, 2, 4]\nglobal_batch_size: 64\nlocal_batch_size: [16, 32]\n"
            "measure: {repeats: 1}"
        )

        assert shapes(found.trials) == [
            (1, 16, 4),
            (1, 32, 2),
            (2, 16, 2),
            (2, 32, 1),
            (4, 16, 1),
        ]
        assert found.left_out == (
            "global_batch_size=64 is not divisible by data_parallel_size=4 * "
            "local_batch_size=32 (=128). Use a multiple of 128 or change "
            "local_batch_size.",
        )

    @pytest.mark.parametrize(
        ("axes", "message"),
        [
            (
                "gpus: [1, 3]\nglobal_batch_size: 64",
                r"global_batch_size=64 is not divisible by data_parallel_size=3\.",
            ),
            (
                "gpus: [1, 2]\nglobal_batch_size: [64, 63]\nlocal_batch_size: 8",
                r"global_batch_size=63 is not divisible by data_parallel_size=1 \* "
                r"local_batch_size=8 \(=8\)\. Use a multiple of 8 or change local_",
            ),
            (
                "gpus: 1\nglobal_batch_size: 64\nlocal_batch_size: [8, 9]",
                "global_batch_size=64 is not divisible by .* local_batch_size=9",
            ),
        ],
    )
    def test_a_value_that_fits_nowhere_is_refused(
        self, axes: str, message: str
    ) -> None:
        with pytest.raises(SpecError, match=message):
            planned(axes)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("gpus: 17", r"gpus=17 is more than site 'local' has: 4 x 4 = 16 cores\."),
        (
            "nodes: 5\ngpus_per_node: 1",
            r"nodes=5 is more than site 'local' has: 4\. Use at most that many",
        ),
        (
            "nodes: 1\ngpus_per_node: 5",
            r"gpus_per_node=5 is more than a node of site 'local' has: 4 cores\.",
        ),
    ],
)
def test_more_devices_than_the_site_has_are_refused(axes: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(f"{axes}\nlocal_batch_size: 8")


def test_a_site_without_a_limit_takes_any_number() -> None:
    site = site_of({"scheduler": "slurm", "device_type": "cuda", "gpus_per_node": 8})
    experiment = Experiment.from_text(HEAD + "gpus: 1024\nlocal_batch_size: 8")

    assert planned_trials(experiment, site)[0].allocation.num_nodes == 128


@pytest.mark.parametrize(
    "axes",
    [
        "options: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b: [1, 2, 3, 4, 5, 6, 7, 8, 9], "
        "c: [1, 2, 3, 4, 5, 6, 7], d: [1, 2, 3, 4, 5, 6, 7], e: [1, 2, 3, 4, 5, 6, 7], "
        "f: [1, 2, 3, 4]}",
        "options: {a: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], b: [1, 2, 3, 4, 5, 6, 7, 8, 9]"
        ", c: [1, 2]}\nmeasure: {repeats: 1000}",
    ],
)
def test_an_absurd_number_of_trials_is_refused_at_once(axes: str) -> None:
    with refused("too_many_trials", "100,000"):
        planned(f"gpus: 1\nlocal_batch_size: 8\n{axes}")


class TestCommand:
    TEXT = "gpus: [1, 2]\nlocal_batch_size: 8\nglobal_batch_size: 16\n"

    def test_accumulation_that_the_command_does_not_hear_of_is_refused(self) -> None:
        with refused(
            "accumulation_not_received",
            "gradient_accumulation_steps=2",
            "{gradient_accumulation_steps}",
            "{accumulation_steps_of_all_ranks}",
            "{global_batch_size}",
        ):
            planned(self.TEXT, "name: a\ncommand: python a.py {local_batch_size}\n")

    @pytest.mark.parametrize(
        "command",
        [
            "command: a {gradient_accumulation_steps}",
            "command: a {accumulation_steps_of_all_ranks}",
            "command: a\nenv: {TOTAL: '{global_batch_size}'}",
            "command: a\nuses: SCALELAB_GLOBAL_BATCH_SIZE",
        ],
    )
    def test_either_placeholder_tells_it(self, command: str) -> None:
        found = planned(self.TEXT, f"name: a\n{command}\n")

        assert {trial.workload for trial in found.trials} == {"command"}

    def test_without_accumulation_nothing_needs_telling(self) -> None:
        assert planned("gpus: 1\nlocal_batch_size: 8", "name: a\ncommand: a\n").trials


class TestAuto:
    def test_before_it_is_known_the_plan_says_that_it_assumes(self) -> None:
        found = planned("gpus: [1, 2]\nlocal_batch_size: auto\nglobal_batch_size: 64")

        assert found.assumes_local_batch
        assert shapes(found.trials[:2]) == [(1, 64, 1), (2, 32, 1)]

    def test_what_fits_is_used(self) -> None:
        experiment = Experiment.from_text(
            HEAD + "gpus: [1, 2]\nlocal_batch_size: auto\nmeasure: {repeats: 1}"
        )
        (setup,) = setups(experiment, SITE)

        found = plan(experiment, SITE, {setup: 24})

        assert not found.assumes_local_batch
        assert shapes(found.trials) == [(1, 24, 1), (2, 24, 1)]

    def test_a_setup_that_does_not_fit_at_all_is_left_out(self) -> None:
        experiment = Experiment.from_text(
            HEAD + "gpus: 1\nlocal_batch_size: auto\nprecision: [fp32, bf16]"
        )
        _fp32, bf16 = setups(experiment, SITE)

        found = plan(experiment, SITE, {bf16: 8})

        assert {trial.precision for trial in found.trials} == {"bf16"}
        assert found.left_out == (
            "fp32 ddp: not even local_batch_size=1 fits into memory.",
        )

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("local_batch_size: auto", 16_384),
            ("local_batch_size: {at_most: 70000}", 70_000),
            ("local_batch_size: auto\njob: {epochs: 1, samples_per_epoch: 99}", 99),
            ("local_batch_size: auto\nglobal_batch_size: [64, 256]", 128),
        ],
    )
    def test_the_search_has_a_limit(self, text: str, limit: int) -> None:
        experiment = Experiment.from_text(f"{HEAD}gpus: [2, 4]\n{text}")

        assert configurations(experiment, SITE)[-1].at_most == limit
