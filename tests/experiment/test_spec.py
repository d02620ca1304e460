import json
from pathlib import Path

import pytest
from sentences import refused

from scalelab.experiment.fingerprint import fingerprint_changes, words_of_run
from scalelab.experiment.job import Job
from scalelab.experiment.program import CommandProgram, WorkloadProgram
from scalelab.experiment.sections import AutoBatch, ConfirmAbove
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import TrialKind
from scalelab.inputs.target import Target
from scalelab.site.profile import LocalSite

WORKLOAD = """
name: digits
workload: {name: digits_mlp, hidden_sizes: [64]}
gpus: [1, 2]
local_batch_size: 16
"""
COMMAND = """
name: vit-b16
command: python train.py --batch {local_batch_size} --lr {learning_rate}
code: {snapshot: [train.py, vit/]}
env: {WANDB_MODE: offline, THREADS: 4}
metrics: {jsonl: $SCALELAB_METRICS}
measure: {kind: throughput, warmup_steps: 20, steps: 60}
job: {epochs: 90, samples_per_epoch: 1281167}
gpus: [1, 2, 4, 8, 16]
global_batch_size: 4096
local_batch_size: auto
learning_rate: {base: 1.0e-3, at_batch: 1024, rule: sqrt}
"""


def read(text: str) -> Experiment:
    return Experiment.from_text(text)


def test_the_example_of_the_readme_is_read_whole() -> None:
    experiment = read(COMMAND)

    assert experiment.gpus == (1, 2, 4, 8, 16)
    assert experiment.local_batch_size == AutoBatch()
    assert experiment.measure.kind == (TrialKind.THROUGHPUT,)
    assert experiment.snapshot_paths == ("train.py", "vit/")
    assert experiment.workload_name == "command"
    assert str(experiment.job) == "90 epochs"


def test_defaults_are_cheap() -> None:
    experiment = read(WORKLOAD)

    assert experiment.measure.kind == (TrialKind.THROUGHPUT,)
    assert experiment.measure.repeats == 3
    assert experiment.precision == ("fp32",)
    assert not experiment.product
    assert experiment.snapshot_paths == ()


def test_repeated_values_count_once() -> None:
    assert read(WORKLOAD + "seed: [1, 0, 1]").seed == (1, 0)


def test_equal_numbers_of_different_kinds_stay_apart() -> None:
    options = read(WORKLOAD + "options: {x: [1, true, '1', 1.0]}").options

    assert options["x"] == (1, True, "1", 1.0)


def test_a_built_in_workload_needs_no_code() -> None:
    assert read(WORKLOAD).programs()[None] == WorkloadProgram(
        name="digits_mlp", parameters={"hidden_sizes": [64]}
    )


def test_an_own_workload_is_found_in_the_snapshot(tmp_path: Path) -> None:
    own = read(WORKLOAD.replace("digits_mlp", "'mine:Workload'"))

    assert own.programs(tmp_path)[None].code_directory == str(tmp_path)
    assert own.programs()[None].code_directory == str(Path.cwd())


def test_a_command_runs_in_the_snapshot_and_reports_to_the_trial(
    tmp_path: Path,
) -> None:
    program = read(COMMAND).programs(tmp_path)[None]

    assert isinstance(program, CommandProgram)
    assert program.env == {"WANDB_MODE": "offline", "THREADS": "4"}
    assert program.metrics.jsonl == "{trial_dir}/metrics.jsonl"
    assert program.code_directory == str(tmp_path)


@pytest.mark.parametrize(
    ("metrics", "jsonl"),
    [
        ("", "{trial_dir}/metrics.jsonl"),
        ("metrics: {jsonl: '${SCALELAB_METRICS}'}", "{trial_dir}/metrics.jsonl"),
        ("metrics: {jsonl: '{trial_dir}/log.jsonl'}", "{trial_dir}/log.jsonl"),
        ("metrics: {regex: 'step (?P<step>\\d+)'}", None),
    ],
)
def test_where_metrics_are_read(metrics: str, jsonl: str | None) -> None:
    text = COMMAND.replace("metrics: {jsonl: $SCALELAB_METRICS}", metrics)
    program = read(text).programs()[None]

    assert isinstance(program, CommandProgram)
    assert program.metrics.jsonl == jsonl
    assert bool(program.metrics.regex) == (jsonl is None)


def test_an_expression_must_name_the_step() -> None:
    loss = "metrics: {regex: 'loss (?P<loss>.+)'}\nprobe: none"
    with refused("no_group_of_step"):
        read(COMMAND.replace("metrics: {jsonl: $SCALELAB_METRICS}", loss))


def test_code_is_looked_for_next_to_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.yaml"
    path.parent.mkdir()
    path.write_text(WORKLOAD)
    assert Experiment.from_file(path).code_root == tmp_path / "sub"

    path.write_text(WORKLOAD + "code: {root: .., snapshot: [x.py]}")
    assert Experiment.from_file(path).code_root == tmp_path


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(WORKLOAD + "gpu: 1")

    with refused("extra_forbidden", "a.yaml", "'gpu'", "'gpus'"):
        Experiment.from_file(path)


@pytest.mark.parametrize("parameter", ["1.5", "[1, {a: null}]", "{a: [true]}", "''"])
def test_workload_parameters_are_plain_values(parameter: str) -> None:
    experiment = read(WORKLOAD.replace("[64]", parameter))

    json.dumps(experiment.programs()[None].parameters)  # type: ignore[union-attr]


class TestJob:
    def job(self, text: str) -> Job:
        found = read(f"{WORKLOAD}job: {text}").job
        assert found is not None
        return found

    @pytest.mark.parametrize(
        ("text", "samples"),
        [
            ("{epochs: 1.5, samples_per_epoch: 101}", 152),
            ("{steps: 10}", 640),
            ("{samples: 1e6}", 1_000_000),
            ("{tokens: 1000, sequence_length: 300}", 4),
            ("{target: a >= 1}", None),
            ("{target: a >= 1, samples: 5}", 5),
        ],
    )
    def test_length_in_samples(self, text: str, samples: int | None) -> None:
        assert self.job(text).num_samples(samples_per_step=64) == samples

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{samples: 1e6}", "1,000,000 samples"),
            ("{target: a >= 1}", "until a >= 1"),
            ("{target: a <= 0.5, steps: 50}", "until a <= 0.5 within 50 steps"),
        ],
    )
    def test_in_words(self, text: str, words: str) -> None:
        assert str(self.job(text)) == words


class TestMeasure:
    CONVERGENCE = WORKLOAD + "measure: {kind: convergence}\n"

    def test_the_job_gives_target_cap_and_evaluations(self) -> None:
        experiment = read(
            self.CONVERGENCE
            + "job: {target: val_acc >= 0.9, epochs: 3, samples_per_epoch: 100}"
        )

        found = experiment.measure.measurement(
            TrialKind.CONVERGENCE, experiment.job, global_batch_size=8
        )

        assert found.target == Target.parse("val_acc >= 0.9")
        assert found.max_samples == 300
        assert found.evaluate_every_samples == 100

    def test_a_throughput_trial_has_no_target(self) -> None:
        experiment = read(WORKLOAD + "job: {target: val_acc >= 0.9}")

        found = experiment.measure.measurement(
            TrialKind.THROUGHPUT, experiment.job, global_batch_size=8
        )

        assert found.target is None
        assert found.max_samples is None

    def test_an_emulation_converges_only_where_that_is_declared(self) -> None:
        text = (
            self.CONVERGENCE.replace("digits_mlp, hidden_sizes: [64]", "emulated")
            + "job: {target: val_acc >= 0.95, epochs: 1, samples_per_epoch: 99}"
        )
        with refused("parameter_missing", "min_samples"):
            read(text)

        read(text.replace("emulated", "emulated, min_samples: 1000"))


@pytest.mark.parametrize(
    ("workload", "measure", "depends"),
    [
        ("digits_mlp", "{}", False),
        ("{name: digits_mlp, batch_norm: true}", "{}", True),
        ("resnet_cifar", "{}", True),
        ("'mine:Own'", "{}", True),
        ("'mine:Own'", "{batch_norm: false}", False),
    ],
)
def test_whether_convergence_depends_on_the_local_batch(
    workload: str, measure: str, depends: bool
) -> None:
    experiment = read(
        f"name: a\nworkload: {workload}\nmeasure: {measure}\n"
        "gpus: 1\nlocal_batch_size: 8\n"
    )

    assert experiment.has_batch_norm is depends


def test_a_command_may_have_batch_norm() -> None:
    assert read(COMMAND).has_batch_norm


@pytest.mark.parametrize(
    ("line", "timeout_s", "stall_timeout_s"),
    [
        ("", None, None),
        ("measure: {timeout: 1h, stall_timeout: 5s}", 3600.0, 5.0),
    ],
)
def test_trials_know_when_they_are_given_up(
    line: str, timeout_s: float | None, stall_timeout_s: float | None
) -> None:
    measurement = read(WORKLOAD + line).measure.measurement(
        TrialKind.THROUGHPUT, None, global_batch_size=1
    )

    assert measurement.timeout_s == timeout_s
    assert measurement.stall_timeout_s == stall_timeout_s


class TestFingerprint:
    def changes(self, before: str, after: str) -> tuple[str, ...]:
        changes = fingerprint_changes(
            json.loads(json.dumps(read(before).fingerprint(code_hash="abc"))),
            read(after).fingerprint(code_hash="abc"),
        )
        return tuple(map(str, changes))

    @pytest.mark.parametrize(
        "line",
        [
            "seed: [0, 1, 2]",
            "precision: [fp32, bf16]",
            "measure: {repeats: 9, timeout: 1h, stall_timeout: 5min}",
            "measure: {start_up_timeout: 2h}",
            "job: {steps: 9}",
            "confirm_above: {trials: 5}",
            "site: {nodes: 2, gpus_per_node: 2, device_type: cpu}",
        ],
    )
    def test_axes_and_job_extend(self, line: str) -> None:
        assert self.changes(WORKLOAD, WORKLOAD + line) == ()

    def test_a_further_family_extends(self) -> None:
        both = (
            WORKLOAD + "measure: {kind: [throughput, convergence]}\n"
            "job: {target: a >= 1, epochs: 3, samples_per_epoch: 9}"
        )

        assert self.changes(WORKLOAD, both) == self.changes(both, WORKLOAD) == ()
        assert self.changes(both, both.replace(">= 1", ">= 2"))

    @pytest.mark.parametrize(
        ("old", "new", "change"),
        [
            ("[64]", "[32]", "parameters.hidden_sizes: [64] -> [32]"),
            ("digits_mlp", "resnet_cifar", "workload: 'digits_mlp' -> 'resnet_cifar'"),
        ],
    )
    def test_a_change_of_the_fingerprint_is_named(
        self, old: str, new: str, change: str
    ) -> None:
        assert self.changes(WORKLOAD, WORKLOAD.replace(old, new)) == (change,)

    @pytest.mark.parametrize("text", [WORKLOAD, COMMAND])
    @pytest.mark.parametrize(
        "metrics", ["jsonl: $SCALELAB_METRICS", "regex: ['(?P<step>.)']"]
    )
    def test_what_is_stored_and_read_back_is_no_change(
        self, text: str, metrics: str
    ) -> None:
        text = text.replace("jsonl: $SCALELAB_METRICS", metrics)
        fingerprint = read(text).fingerprint(code_hash="a", device_type="cpu")

        assert (
            fingerprint_changes(json.loads(json.dumps(fingerprint)), fingerprint) == ()
        )

    def test_a_longer_measurement_is_a_change(self) -> None:
        changes = self.changes(COMMAND, COMMAND.replace("steps: 60", "steps: 90"))

        assert changes == ("measure.throughput.steps: 60 -> 90",)

    def test_other_code_is_a_change(self) -> None:
        before, after = (read(COMMAND).fingerprint(code_hash=x) for x in ("a", "b"))

        (change,) = fingerprint_changes(before, after)
        assert str(change) == "code_hash: 'a' -> 'b'"


def test_a_sweep_asks_above_each_threshold() -> None:
    confirm = ConfirmAbove(trials=10, gpu_hours=2)

    assert confirm.question(10, 2.0, 0.05, "GPU-h") is None
    assert confirm.question(10, None, None, "GPU-h") is None
    assert "confirm_above.trials" in str(confirm.question(1000, None, 0.5, "GPU-h"))
    assert "confirm_above.gpu_hours" in str(confirm.question(5, 12.34, 0.5, "GPU-h"))
    assert "confirm_above.share_of_job" in str(
        confirm.question(5, None, 0.301, "GPU-h")
    )


def test_the_site_is_the_override_or_its_own_or_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("gpus_per_node: 3\ndevice_type: cpu")
    inline = read(WORKLOAD + "site: {gpus_per_node: 2, device_type: cpu}")
    named = read(f"{WORKLOAD}site: {path}")

    assert inline.resolve_site().gpus_per_node == 2
    assert inline.resolve_site(str(path)).name == "other"
    assert named.resolve_site().gpus_per_node == 3
    assert read(WORKLOAD).resolve_site() == LocalSite()


def test_editors_get_a_schema_that_accepts_shorthands() -> None:
    schema = Experiment.json_schema()

    json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    gpus = json.dumps(schema["properties"]["gpus"])
    assert '"integer"' in gpus
    assert '"array"' in gpus
    assert {"const": "auto"} in schema["$defs"]["AutoBatch"]["anyOf"]
    assert {"type": "number"} in schema["$defs"]["Rates"]["anyOf"][0]["anyOf"]
    assert all("description" in value for value in schema["properties"].values())


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for folder in ("experiments", "experiments/one_gpu")
        for path in (Path(__file__).parents[2] / folder).glob("*.yaml")
    ),
    ids=str,
)
def test_the_experiments_that_come_with_scalelab_are_short_and_valid(
    path: Path,
) -> None:
    assert len(path.read_text().splitlines()) <= 40
    assert Experiment.from_file(path).job is not None


@pytest.mark.parametrize(
    ("types", "words"),
    [
        ([], ("GPU", "GPU-h")),
        ([None, "cuda"], ("GPU", "GPU-h")),
        (["cpu", "cpu"], ("CPU slot", "core-h")),
        (["cpu", "cuda"], ("device", "device-h")),
    ],
)
def test_devices_of_several_types_are_called_devices(
    types: list[str | None], words: tuple[str, str]
) -> None:
    rows = [{"device_type": kind} for kind in types]
    assert words_of_run({"device_type": "cuda"}, rows) == words
