from collections.abc import Mapping

import pytest
from sentences import refused
from toy_strategies import PAIRS, STALE, register

from scalelab.errors import SpecError
from scalelab.experiment.checks import check_kinds
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import DEFAULT_STRATEGY, STRATEGIES, strategy_of
from scalelab.kinds.strategy import Strategy
from scalelab.plan.expand import Plan, plan
from scalelab.plan.planned import PlannedTrials
from scalelab.site.profile import LocalSite
from scalelab.testing.strategies import StrategyContract

SITE = LocalSite(device_type="cpu", nodes=4, gpus_per_node=4)
HEAD = "name: a\nworkload: digits_mlp\nlearning_rate: 0.1\nmeasure: {repeats: 1}\n"


class TestEveryStrategy(StrategyContract):
    @pytest.fixture(params=STRATEGIES.built_in, ids=lambda row: row.name)
    def row(self, request: pytest.FixtureRequest) -> Strategy:
        found: Strategy = request.param
        return found


def test_one_rank_needs_no_server() -> None:
    row = STRATEGIES["parameter_server"]
    assert row.num_servers(1, {"num_servers": 2}) == 0
    assert row.num_servers(2, {"num_servers": 2}) == 2
    assert row.num_servers(2, {}) == 1


def test_a_pipeline_is_all_ranks_or_as_many_as_it_has_stages() -> None:
    row = STRATEGIES["pipeline"]
    sizes = [row.data_parallel_size(8, {"stages": n}) for n in (1, 2, 8)]
    assert sizes == [8, 4, 1]
    assert row.data_parallel_size(8, {}) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "parallelism: local_sgd",
            r"^parallelism=local_sgd needs options\.averaging_period\. Steps .*4, 16",
        ),
        (
            "options: {sync_batch_norm: [true, 1]}",
            r"^parallelism=ddp: options\.sync_batch_norm=1 must be true or false\.",
        ),
        (
            "options: {gradient_compression: [none, fp8]}",
            r"^parallelism=ddp: options\.gradient_compression='fp8' is not known\. "
            r"Valid: none, fp16, bf16, powersgd\.",
        ),
        (
            "options: {gradient_compression: powersgd, powersgd_rank: [2, 0]}",
            r"options\.powersgd_rank=0 must be at least 1\. Rank of the products of",
        ),
        (
            "options: {gradient_compression: powersgd, powersgd_rank: 1.5}",
            r"options\.powersgd_rank=1\.5 must be a whole number\. Rank .* 1 or more\.",
        ),
        (
            "options: {gradient_compression: [none, bf16], powersgd_rank: 2}",
            r"^options\.powersgd_rank is the rank of what options\.gradient_compressi"
            r"on=powersgd exchanges, and that is not listed\. Add powersgd to",
        ),
        (
            "options: {bucket_cap_mb: [25, 0]}",
            r"options\.bucket_cap_mb=0 must be greater than 0\. MiB of gradients",
        ),
        (
            "parallelism: fsdp\noptions: {shard_group: 2.5}",
            r"^parallelism=fsdp: options\.shard_group=2\.5 must be a whole number\.",
        ),
        (
            "parallelism: [ddp, local_sgd]\noptions: {averaging_period: [4, 0]}",
            r"^parallelism=local_sgd: options\.averaging_period=0 must be at least 1\.",
        ),
        (
            "parallelism: local_sgd\n"
            "options: {averaging_period: 4, synchronous_steps: true}",
            r"options\.synchronous_steps=True must be a whole number\. .* 0 or more\.",
        ),
        (
            "parallelism: parameter_server\noptions: {rule: [adag, adga]}",
            r"options\.rule='adga' is not known\. Did you mean 'adag'\? Valid: d",
        ),
        (
            "parallelism: parameter_server\noptions: {staleness_bound: 0}",
            r"options\.staleness_bound=0 must be at least 1\. Steps that a worker",
        ),
        (
            "parallelism: [ddp, pipeline]",
            r"^parallelism=pipeline needs options\.split_size\. Samples per .*\[4, 8\]",
        ),
        (
            "parallelism: pipeline\noptions: {split_size: 4, schedule: [gpipe, 1f1]}",
            r"options\.schedule='1f1' is not known\. Did you mean '1f1b'\? Valid: g",
        ),
        (
            "parallelism: pipeline\noptions: {split_size: 4, stages: 0}",
            r"options\.stages=0 must be at least 1\. Ranks that share the layers",
        ),
    ],
)
def test_wrong_options_of_a_strategy_are_refused(text: str, message: str) -> None:
    asked = Experiment.from_text(HEAD + f"gpus: 2\nlocal_batch_size: 8\n{text}\n")
    with pytest.raises(SpecError, match=message):
        check_kinds(asked)


def test_the_rank_of_products_is_varied_where_products_are_exchanged() -> None:
    text = "gpus: 2\nlocal_batch_size: 8\noptions: {}\n"
    options = "{gradient_compression: [none, powersgd], powersgd_rank: [1, 2]}"
    trials = plan(Experiment.from_text(HEAD + text.format(options)), SITE).trials
    assert [dict(trial.options) for trial in trials] == [
        {"gradient_compression": "none"},
        {"gradient_compression": "powersgd", "powersgd_rank": 1},
        {"gradient_compression": "powersgd", "powersgd_rank": 2},
    ]
    plain = plan(
        Experiment.from_text(HEAD + text.format("{gradient_compression: none}")), SITE
    )
    assert trials[0].trial_id == plain.trials[0].trial_id


def test_a_command_gets_every_option() -> None:
    text = "name: a\ncommand: a {gradient_compression} {powersgd_rank}\n"
    text += "metrics: {regex: '(?P<step>.)'}\ngpus: 1\nlocal_batch_size: 8\n"
    text += "measure: {repeats: 1}\n"
    options = "options: {gradient_compression: [none, powersgd], powersgd_rank: low}\n"
    asked = Experiment.from_text(text + options)
    check_kinds(asked)
    assert [dict(trial.options) for trial in plan(asked, SITE).trials] == [
        {"gradient_compression": name, "powersgd_rank": "low"}
        for name in ("none", "powersgd")
    ]


def test_a_static_graph_does_not_go_with_accumulation() -> None:
    text = "gpus: [1, 2]\nlocal_batch_size: [8, 16]\nglobal_batch_size: 32\n"
    found = plan(
        Experiment.from_text(HEAD + text + "options: {static_graph: true}\n"), SITE
    )
    sizes = [
        (t.world_size, t.local_batch_size, t.gradient_accumulation_steps)
        for t in found.trials
    ]
    assert sizes == [(1, 8, 4), (1, 16, 2), (2, 16, 1)]
    (reason,) = found.left_out
    assert reason.startswith(
        "parallelism=ddp: options.static_graph does not go with "
        "gradient_accumulation_steps=2: torch fails where"
    )


def test_shard_groups_divide_the_ranks() -> None:
    text = "gpus: [2, 4]\nlocal_batch_size: 8\nparallelism: fsdp\n"
    found = plan(
        Experiment.from_text(HEAD + text + "options: {shard_group: [2, 4]}\n"), SITE
    )
    sizes = [(t.world_size, t.options["shard_group"]) for t in found.trials]
    assert sizes == [(2, 2), (4, 2), (4, 4)]
    assert found.left_out == (
        "parallelism=fsdp: options.shard_group=4 does not divide 2 devices, so that "
        "ranks cannot be grouped. Use one of 1, 2, or other numbers of devices.",
    )


def test_pipelines_that_cannot_run_are_left_out_with_their_reasons() -> None:
    text = "gpus: [2, 4]\nlocal_batch_size: 16\nparallelism: pipeline\noptions: "
    options = "{schedule: [gpipe, 1f1b], split_size: [3, 4, 8], stages: [2, 4]}\n"
    found = plan(Experiment.from_text(HEAD + text + options), SITE)
    sizes = [
        (
            *(t.options[name] for name in ("schedule", "split_size", "stages")),
            *(t.world_size, t.data_parallel_size, t.global_batch_size),
        )
        for t in found.trials
    ]
    assert sizes == [
        ("gpipe", 4, 2, 2, 1, 16),
        ("gpipe", 4, 2, 4, 2, 32),
        ("gpipe", 4, 4, 4, 1, 16),
        ("gpipe", 8, 2, 2, 1, 16),
        ("gpipe", 8, 2, 4, 2, 32),
        ("gpipe", 8, 4, 4, 1, 16),
        ("1f1b", 4, 2, 2, 1, 16),
        ("1f1b", 4, 2, 4, 2, 32),
        ("1f1b", 4, 4, 4, 1, 16),
        ("1f1b", 8, 2, 2, 1, 16),
        ("1f1b", 8, 2, 4, 2, 32),
    ]
    assert set(found.left_out) == {
        "parallelism=pipeline: options.split_size=3 does not divide "
        "local_batch_size=16 into equal micro-batches. Use a divisor, or another "
        "local batch.",
        "parallelism=pipeline: options.stages=4 does not divide 2 devices, so that "
        "they form no whole pipelines. Use one of 1, 2, or other numbers of devices.",
        "parallelism=pipeline: options.schedule=1f1b needs a micro-batch for each of "
        "the 4 stages, and local_batch_size=16 / split_size=8 is 2. Use a smaller "
        "split_size, a larger local batch, fewer stages, or schedule: gpipe.",
    }


def test_split_batches_are_not_searched_for() -> None:
    text = "gpus: 2\nlocal_batch_size: auto\nparallelism: pipeline\n"
    asked = Experiment.from_text(HEAD + text + "options: {split_size: 4}\n")
    with refused("auto_batch_with_stages", "local_batch_size=auto"):
        check_kinds(asked)


@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        ("ddp", "slow_rank_factor"),
        ("fsdp", "shard_group"),
        ("local_sgd", "averaging_period"),
        ("parameter_server", "communication_window"),
        ("pipeline", "stages"),
    ],
)
def test_a_command_may_call_its_options_as_it_likes(strategy: str, option: str) -> None:
    text = f"command: a {{{option}}}\nmetrics: {{regex: '(?P<step>.)'}}\nname: a\n"
    text += f"parallelism: {strategy}\noptions: {{{option}: often}}\n"
    asked = Experiment.from_text(text + "gpus: 2\nlocal_batch_size: 8\n")
    check_kinds(asked)
    assert plan(asked, SITE).trials[0].options == {option: "often"}


def test_a_name_that_no_registry_knows_is_believed() -> None:
    foreign = strategy_of("megatron")
    assert foreign.name == "megatron"
    assert foreign.data_parallel_size(8, {}) == 8
    assert (foreign.is_synchronous, foreign.factorises) == (True, True)
    assert foreign.shards_state
    assert strategy_of(float("nan")) is STRATEGIES[DEFAULT_STRATEGY]


def test_the_batch_of_a_trial_follows_from_its_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(
        kind=TrialKind.THROUGHPUT,
        workload="digits_mlp",
        allocation=Allocation(devices_per_node=(4, 4)),
        local_batch_size=16,
        gradient_accumulation_steps=2,
        parallelism="pairs",
    )
    assert trial.global_batch_size == 16 * 8 * 2
    trial_id = trial.trial_id

    register(monkeypatch, PAIRS)

    assert (trial.world_size, trial.data_parallel_size) == (8, 4)
    assert trial.global_batch_size == 16 * 4 * 2
    assert trial.trial_id == trial_id


class TestPlans:
    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        register(monkeypatch, PAIRS, STALE)

    def planned(self, text: str) -> Plan:
        return plan(Experiment.from_text(HEAD + text), SITE)

    def test_the_global_batch_is_shared_by_the_data_parallel_ranks(self) -> None:
        trials = self.planned(
            "gpus: [2, 4, 8]\nglobal_batch_size: 64\nparallelism: pairs\n"
        ).trials
        sizes = [(t.world_size, t.local_batch_size) for t in trials]
        assert sizes == [(2, 64), (4, 32), (8, 16)]
        assert {trial.global_batch_size for trial in trials} == {64}

    def test_what_the_strategy_refuses_is_left_out_with_its_reason(self) -> None:
        found = self.planned(
            "gpus: [1, 2]\nlocal_batch_size: [1, 8]\nparallelism: [ddp, pairs]\n"
        )
        sizes = [
            (t.parallelism, t.world_size, t.local_batch_size) for t in found.trials
        ]
        assert sizes == [
            ("ddp", 1, 1),
            ("ddp", 1, 8),
            ("ddp", 2, 1),
            ("ddp", 2, 8),
            ("pairs", 2, 8),
        ]
        assert found.left_out == (
            "parallelism=pairs needs two devices each, not 1.",
            "parallelism=pairs needs local_batch_size=2 or more.",
        )

    def test_a_strategy_that_fits_nowhere_is_refused(self) -> None:
        with pytest.raises(SpecError, match=r"^parallelism=pairs needs two devices"):
            self.planned(
                "gpus: [1, 3]\nlocal_batch_size: 8\nparallelism: [ddp, pairs]\n"
            )

    def test_an_option_of_one_strategy_is_not_varied_for_the_others(self) -> None:
        trials = self.planned(
            "gpus: 2\nlocal_batch_size: 8\nparallelism: [ddp, pairs]\n"
            "options: {depth: [2, 4], dropout: [0.1]}\n"
        ).trials
        assert [(t.parallelism, dict(t.options)) for t in trials] == [
            ("ddp", {"dropout": 0.1}),
            ("pairs", {"depth": 2, "dropout": 0.1}),
            ("pairs", {"depth": 4, "dropout": 0.1}),
        ]

    def test_convergence_that_depends_on_the_workers_is_run_with_each_number(
        self,
    ) -> None:
        text = (
            "gpus: [1, 2, 4]\nglobal_batch_size: 64\nparallelism: {}\n"
            "job: {{target: val_acc >= 0.9}}\n"
        )
        head = HEAD.replace(
            "{repeats: 1}",
            "{kind: convergence, max_samples: 640, evaluate_every_samples: 64}",
        )

        def sizes(name: str) -> list[int]:
            asked = Experiment.from_text(head + text.format(name))
            return [trial.world_size for trial in plan(asked, SITE).trials]

        assert sizes("ddp") == [1]
        assert sorted(sizes("stale")) == [1, 2, 4]

    def test_the_largest_batch_is_looked_for_on_the_fewest_devices_it_can_use(
        self,
    ) -> None:
        text = "gpus: [4, 2]\nlocal_batch_size: auto\nparallelism: [ddp, pairs, fsdp]\n"
        source = PlannedTrials(Experiment.from_text(HEAD + text), SITE)
        asked = [trial for trial in (source.ask() for _ in range(3)) if trial]
        # A device holds less of a model that is spread over more.
        sizes = [(trial.parallelism, trial.world_size) for trial in asked]
        assert sizes == [("ddp", 1), ("pairs", 2), ("fsdp", 2)]

    def test_options_that_need_ranks_are_probed_with_these(self) -> None:
        text = "gpus: [4, 2, 1]\nlocal_batch_size: auto\n"
        text += "options: {slow_rank_factor: [1, 2]}\n"
        source = PlannedTrials(Experiment.from_text(HEAD + text), SITE)
        asked = [trial for trial in (source.ask() for _ in range(2)) if trial]
        factors = [trial.options["slow_rank_factor"] for trial in asked]
        assert factors == [1, 2]
        assert [trial.world_size for trial in asked] == [1, 2]


def test_a_strategy_that_leaves_no_rank_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(world_size: int, options: Mapping[str, Scalar]) -> int:
        return world_size // 2

    register(monkeypatch, PAIRS)
    monkeypatch.setattr(PAIRS, "data_parallel_size", half)
    text = "gpus: 1\nlocal_batch_size: 8\nparallelism: pairs\n"
    with refused("no_rank_left", "parallelism=pairs", "gpus=1"):
        plan(Experiment.from_text(HEAD + text), SITE)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("parameter_server", "has no parameters to serve"),
        ("pipeline\noptions: {split_size: 4}", "has no layers to divide"),
    ],
)
def test_what_works_on_a_model_needs_one(strategy: str, message: str) -> None:
    text = HEAD.replace("digits_mlp", "emulated")
    text += f"gpus: 2\nlocal_batch_size: 8\nparallelism: {strategy}\n"
    with pytest.raises(SpecError, match=message):
        check_kinds(Experiment.from_text(text))
