"""What is wrong with an experiment: each refusal by its code, provoked once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gang import throughput_trial
from sentences import Golden

from scalelab.experiment.sections import ConfirmAbove
from scalelab.experiment.spec import Experiment
from scalelab.plan.expand import plan
from scalelab.plan.tracked import source_of

SITE = "site: {device_type: cpu, nodes: 4, gpus_per_node: 2}\n"
PLACE = "gpus: [1, 2]\nlocal_batch_size: 8\n"
WORKLOAD = f"name: a\nworkload: digits_mlp\n{SITE}"
COMMAND = f"name: a\ncommand: python a.py {{local_batch_size}}\n{SITE}"
ALONE = f"name: a\ncommand: python a.py\n{SITE}"
PROGRAMS = f"name: a\n{SITE}{PLACE}"
EPOCHS = "job: {epochs: 2, samples_per_epoch: 1437}\n"
TARGET = "job: {epochs: 2, samples_per_epoch: 1437, target: val_acc >= 0.9}\n"
BEST = "measure: {kind: convergence}\n"
ONE = f"gpus: 1\nlocal_batch_size: 32\n{BEST}{TARGET}"
TUNE = "tune: {weight_decay: {log: [1.0e-5, 0.1]}}\n"
STAGES = "parallelism: pipeline\noptions: {split_size: 4}"
TUNED = "learning_rate: {base: 0.1, at_batch: 32, rule: tuned}\n"

SEARCHES = [
    ("search_without_space", ONE + "source: optuna"),
    ("two_searches", ONE + TUNE + "source: planned"),
    ("two_searches", ONE + TUNE + TUNED),
    ("two_searches", ONE + TUNED + "source: planned"),
    ("tuned_rate_kinds", PLACE + TARGET + TUNED),
    (
        "tuned_rate_kinds",
        f"gpus: 1\nlocal_batch_size: auto\n{BEST}{TARGET}{TUNED}",
    ),
    ("tuned_with_rules", ONE + TUNED.replace("0.1", "[1, 2]")),
    ("no_batch_of_rate", ONE + TUNED.replace("at_batch: 32, ", "")),
    ("search_measures_steps", PLACE.replace("[1, 2]", "1") + TARGET + TUNE),
    ("search_with_auto_batch", ONE.replace("size: 32", "size: auto") + TUNE),
    ("search_with_axis", ONE.replace("gpus: 1", "gpus: [1, 2]") + TUNE),
    ("search_with_axis", ONE.replace("size: 32", "size: [16, 32]") + TUNE),
    ("search_with_axis", ONE + TUNE + "learning_rate: [0.1, 0.2]"),
    ("search_with_axis", ONE + TUNE + "optimizer: [sgd, adamw]"),
    ("search_with_axis", ONE + TUNE + "seed: [1, 2]"),
    ("search_with_axis", ONE + TUNE + "options: {dropout: [0.1, 0.2]}"),
    ("search_said_twice", ONE + TUNE + "source: {name: optuna, tune: {a: [1, 2]}}"),
    ("key_of_search", ONE + "trials: 3"),
    ("tuned_and_listed", ONE + TUNE + "options: {weight_decay: 0.1}"),
    ("tuned_and_set", ONE + "tune: {learning_rate: [0.1, 1]}\nlearning_rate: 0.1"),
    ("not_tunable", ONE + "tune: {global_batch_size: [32, 64]}"),
    ("grid_of_range", ONE + TUNE + "sampler: grid"),
    (
        "grid_has_own_trials",
        ONE + "tune: {dropout: [0.1, 0.2]}\nsampler: grid\ntrials: 3",
    ),
    ("no_objective", ONE.replace(", target: val_acc >= 0.9", "") + TUNE),
    ("empty_range", ONE + "tune: {dropout: {float: [0.5, 0.1]}}"),
    ("no_logarithm", ONE + "tune: {dropout: {log: [0, 0.1]}}"),
    ("only_choice", ONE + "tune: {dropout: [0.1]}"),
    ("nothing_to_choose", ONE + "tune: {dropout: 0.1}"),
    ("not_one_space", ONE + "tune: {dropout: {float: [0, 1], int: [0, 1]}}"),
    ("int_type", ONE + "tune: {depth: {int: [1, 2.5]}}"),
]
KEYS = [
    ("extra_forbidden", PLACE + "gpu: 1"),
    ("greater_than_equal", PLACE + "measure: {repeats: 0}"),
    ("greater_than_equal", PLACE + "measure: {steps: 0, repeats: -1}"),
    ("enum", PLACE + "measure: {kind: throughputs}"),
    ("enum", PLACE + "measure: {kind: 'throughput,convergence'}"),
    ("extra_forbidden", PLACE + "measure: {kind: throughput, convergence}"),
    ("int_type", PLACE + "seed: [0, 1.5]"),
    ("int_type", PLACE + "nodes: 1, 2"),
    ("string_pattern_mismatch", PLACE + "node_group: a, b"),
    ("string_type", PLACE + "options: {dropout: 0.1, 0.2}"),
    ("empty_list", PLACE + "precision: []"),
    ("not_a_rate", PLACE + "learning_rate: [0.1, a]"),
    ("not_a_rate", PLACE + "learning_rate: fast"),
    ("greater_than", PLACE + "job: {epochs: 0, samples_per_epoch: 9}"),
    ("less_than_equal", PLACE + "gradient_accumulation_steps: 1000000000000001"),
    ("model_type", PLACE + "job: 3"),
    ("not_a_scalar", PLACE + "options: {x: [{a: 1}]}"),
    ("not_a_batch", PLACE.replace("8", "8, 16")),
    ("key_of_command", PLACE + "env: {A: 1}"),
    ("key_of_command", PLACE + "env_from: A"),
    ("key_of_command", PLACE + "uses: [SCALELAB_SEED]"),
    ("strong_without_batch", PLACE + "scaling: strong"),
    ("weak_with_batch", PLACE + "scaling: weak\nglobal_batch_size: 64"),
    (
        "accumulation_follows",
        PLACE + "gradient_accumulation_steps: 2\nglobal_batch_size: 64",
    ),
    ("devices_said_twice", PLACE + "nodes: 1\ngpus_per_node: 2"),
    ("devices_of_nodes", "nodes: 1\nlocal_batch_size: 8"),
    ("no_devices", "local_batch_size: 8"),
    ("no_batch", "gpus: 1"),
    ("path_leaves_root", PLACE + "code: {snapshot: [../a.py]}"),
    ("not_one_program", PLACE + "command: python a.py"),
    ("nothing_to_accept", PLACE + "accept: val_acc >= 0.9"),
]
JOBS = [
    ("job_said_twice", "job: {steps: 3, samples: 9}"),
    ("no_length", "job: {samples_per_epoch: 3}"),
    ("no_sequence_length", "job: {tokens: 3}"),
    ("operations_without_peak", "job: {samples: 3, flops_per_sample: 1.0e+9}"),
    ("epochs_without_samples", "job: {epochs: 3}"),
    ("epochs_without_samples", "measure: {max_epochs: 3}"),
    (
        "warmup_without_samples",
        "learning_rate: {base: 0.1, warmup: {epochs: 5}}",
    ),
    ("two_caps", "measure: {max_samples: 9, max_epochs: 3}"),
    ("no_metric_to_reach", BEST),
    ("no_metric_to_reach", BEST + "job: {steps: 3}"),
    ("no_end", BEST + "job: {target: a >= 1}"),
    ("no_evaluations", BEST + "job: {target: a >= 1, steps: 3}"),
    ("no_batch_of_rate", "learning_rate: {base: 0.1, rule: [none, sqrt]}"),
    ("batch_without_rule", "learning_rate: {base: 0.1, at_batch: 8}"),
    ("not_one_length", "learning_rate: {base: 0.1, warmup: {steps: 5, samples: 9}}"),
]
COMMANDS = [
    ("optimizer_of_command", PLACE + "optimizer: sgd"),
    ("no_group_of_step", PLACE + "metrics: {regex: 'a (?P<a>.)'}\nprobe: none"),
    (
        "no_group_of_metric",
        f"{ONE}metrics: {{regex: 'step (?P<step>.)'}}",
    ),
    ("bad_expression", PLACE + "metrics: {regex: '('}"),
    ("unknown_preset", PLACE + "metrics: nanogtp"),
    ("unknown_preset", PLACE + "metrics: {preset: lightening}"),
    ("unknown_preset", PLACE + "metrics: {preset: 3}"),
    ("preset_with_file", PLACE + "metrics: {preset: keras, csv: a.csv}"),
    ("not_one_place", PLACE + "metrics: {jsonl: a, csv: b}"),
    ("csv_as_jsonl", PLACE + "metrics: {jsonl: '{trial_dir}/a.csv'}"),
    ("columns_without_file", PLACE + "metrics: {jsonl: a, columns: {step: n}}"),
    ("string_type", PLACE + "metrics: {preset: keras, regex: 3}"),
    ("extra_forbidden", PLACE + "metrics: {preset: keras, regx: a}"),
    ("no_variable_name", PLACE + "env: {1A: x}"),
    ("no_variable_name", PLACE + "env_from: [1A]"),
    ("dict_type", PLACE + "env: TOKEN=sk-secret"),
    ("not_a_variable", PLACE + "env: {A: [sk]}"),
    ("ambiguous_variable", PLACE + "env: {A: true}"),
    ("variable_said_twice", PLACE + "env: {A: x}\nenv_from: A"),
    ("variable_not_set", PLACE + "env_from: WANDB_API_KEY"),
    ("unknown_variable", PLACE + "uses: [SCALELAB_LOCAL_BATCH]"),
    ("grace_too_long", PLACE + "stop: {grace: 2min}"),
    ("literal_error", PLACE + "stop: {signal: SIGKILL, grace: 9s}"),
    ("axis_changes_nothing", PLACE + "options: {depth: [1]}"),
    ("axis_changes_nothing", ONE + TUNE),
    ("axis_changes_nothing", ONE + "tune: {learning_rate: [0.1, 0.2]}"),
    ("axis_has_placeholder_name", PLACE + "options: {seed: [1]}"),
    ("unknown_placeholder", PLACE + "env: {A: '{lr}'}"),
    ("placeholder_without_layout", PLACE + "env: {A: '{tensor_parallel_size}'}"),
    ("no_learning_rate", PLACE + "env: {A: '{warmup_samples}'}"),
    ("rank_before_start", PLACE + "launcher: mpirun\nenv: {A: '{local_rank}'}"),
    (
        "accumulation_not_received",
        PLACE + "gradient_accumulation_steps: 2",
    ),
    ("no_rest", PLACE + "layout: {data: all}"),
    ("not_one_rest", PLACE + "layout: {data: {replicate: 2, shard: 2}}"),
    (
        "layout_per_node_batch",
        "gpus: 2\nlocal_batch_size: 8\nlayout: {tensor: 2}\n"
        "env: {A: '{batch_size_per_node}'}",
    ),
    (
        "auto_batch_with_stages",
        "gpus: 2\nlocal_batch_size: auto\nlayout: {pipeline: 2, micro_batches: split}",
    ),
    ("operations_unknown", PLACE + "job: {samples: 9, device_peak_flops: 1.0e+12}"),
]
NOT_RECEIVED = [
    ("axis_not_received", "gpus: 2\nlocal_batch_size: [8, 16]"),
    ("axis_not_received", "gpus: 2\nlocal_batch_size: auto"),
    ("axis_not_received", PLACE + "precision: [fp32, bf16]"),
    ("axis_not_received", PLACE + "parallelism: [ddp, fsdp]"),
]
SEVERAL = [
    ("no_programs", "program: []"),
    ("program_name_twice", "program: [{name: b, command: c}, {name: b, command: d}]"),
    (
        "option_named_program",
        "program: [{name: b, command: c}]\noptions: {program: [1]}",
    ),
    (
        "axis_not_received",
        "program: [{name: b, command: c}]\nprecision: [fp32, bf16]",
    ),
]
UNTRAINED = [
    ("no_held_out_data", "synthetic_images", f"{PLACE}{BEST}{TARGET}"),
    ("parameter_missing", "emulated", f"{PLACE}{BEST}{TARGET}"),
    ("option_of_model", "emulated", PLACE + STAGES),
    (
        "auto_batch_with_stages",
        "transformer_lm",
        "gpus: 2\nlocal_batch_size: auto\n" + STAGES,
    ),
]
ROWS = [
    ("int_type", WORKLOAD.replace(SITE, "site: {nodes: [1]}\n") + PLACE),
    *((code, WORKLOAD + text) for code, text in SEARCHES + KEYS),
    *((code, WORKLOAD + PLACE + text) for code, text in JOBS),
    *(
        (code, WORKLOAD.replace("digits_mlp", workload) + text)
        for code, workload, text in UNTRAINED
    ),
    *((code, COMMAND + text) for code, text in COMMANDS),
    *((code, ALONE + text) for code, text in NOT_RECEIVED),
    *((code, PROGRAMS + text) for code, text in SEVERAL),
]


def ask(text: str) -> None:
    """Read an experiment and plan it, with its variables of the environment."""
    asked = Experiment.from_text(text)
    asked.inherited({})
    source_of(asked, asked.resolve_site())
    plan(asked, asked.resolve_site())


def test_every_refusal_has_a_code_and_a_sentence(golden: Golden) -> None:
    trial = throughput_trial("digits_mlp")
    rows = [(code, partial(ask, text)) for code, text in ROWS]
    below_one = partial(replace, trial, local_batch_size=0)
    consent = ConfirmAbove(trials=10, gpu_hours=2)
    questions = [
        consent.question(1000, None, 0.5, "GPU-h"),
        consent.question(5, 12.34, 0.5, "GPU-h"),
        consent.question(5, None, 0.301, "GPU-h"),
    ]
    golden.refusals([*rows, ("below_one", below_one)])
    golden.hold("question of consent", *map(str, questions))
