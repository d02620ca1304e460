"""The columns of the observations frame: name, type, unit and meaning.

``SCHEMA_VERSION`` rises with every change that an older reader would misread.
"""

from dataclasses import dataclass
from functools import partial

from scalelab.experiment.trial import PROGRAM

SCHEMA_VERSION = 4
OPTION_PREFIX = "options."
PROGRAM_COLUMN = f"{OPTION_PREFIX}{PROGRAM}"
# Validity reason of the row of a long trial, which is held against other rows.
LONG_TRIAL = "long_trial"
# Why later steps of a long trial take another time than those of its window: the
# later_differs of a row.
PAUSES, FIRST_EPOCH = "pauses", "first_epoch"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype and what a value means.

    ``text``, ``integer``, ``number``, ``flag``, ``time`` (UTC) or ``list`` (of text).
    """

    kind: str
    name: str
    meaning: str


_text, _integer, _number, _flag, _time, _list = (
    partial(Column, kind)
    for kind in ("text", "integer", "number", "flag", "time", "list")
)

COLUMNS = (
    _integer("schema_version", "Version of these columns."),
    _text("run", "Name of the run."),
    _text("trial_id", "Hash of the configuration."),
    _integer(
        "repeat",
        "0-based index among equal trials; from 1,000 on canaries; 1,000,000: long.",
    ),
    _integer("attempt", "1-based launch number of the trial."),
    _text("outcome", "How the attempt ended; pruned: early, by the source of trials."),
    _text("reason", "Why, in a sentence; missing for completed."),
    _text("kind", "throughput, convergence, end_to_end or imported."),
    _text("workload", "Built-in name, module:Class, or the experiment's name."),
    _text("dataset", "Name and fingerprint of the training data."),
    _text("code_hash", "Hash of code and command, or of workload and parameters."),
    _flag("emulated", "Times are declared, not measured."),
    _text("parallelism", "ddp, fsdp, local_sgd, ..."),
    _text("device_type", "cpu, cuda or tpu."),
    _text("device_name", "Model of the device."),
    _text("node_group", "Node group of the site; missing where nodes are alike."),
    _list("device_ids", "Devices by global rank."),
    _integer("num_nodes", "Nodes."),
    _number("gpus_per_node", "Devices per node, a mean where uneven."),
    _integer("devices_of_node", "Devices of a whole node, used or not; if declared."),
    _integer("world_size", "Ranks, one per device."),
    _integer("data_parallel_size", "Ranks that see different samples."),
    _text("placement", "Devices per node, e.g. 4+2."),
    _flag("exclusive_node", "Nobody else could use the node."),
    _integer("threads_per_rank", "Threads a rank used for one operation."),
    _integer("local_batch_size", "Samples per rank, or replica, per forward pass."),
    _integer("gradient_accumulation_steps", "Forward passes per optimiser step."),
    _integer("global_batch_size", "Samples per optimiser step over all ranks."),
    _integer("normalization_batch_size", "Samples one batch-norm statistic sees."),
    _integer("sequence_length", "Tokens per sample."),
    _text("precision", "fp32, bf16 or fp16."),
    _text("optimizer", "Optimiser class and momentum terms."),
    _text("lr_rule", "none, linear, sqrt or staleness."),
    _number("base_learning_rate", "Rate before the rule."),
    _number("learning_rate", "Rate after the rule and warm-up."),
    _text(
        "warmup",
        "Length over which the rate rises linearly at first, as asked: 500 steps.",
    ),
    _text("schedule", "Shape of the rate over training, after the warm-up."),
    _text("sample_order", "sharded: ranks draw from parts of the data; else missing."),
    _integer("planned_steps", "Optimiser steps the schedule was planned for."),
    _integer("seed", "Seed of every generator and of the sample order."),
    _integer("num_parameters", "Trainable parameters."),
    _integer("gradient_bytes", "Bytes of one gradient exchange per rank."),
    _integer("num_steps", "Measured optimiser steps, warm-up excluded."),
    _integer("num_samples", "Training samples seen, warm-up included."),
    _number(
        "flops_per_sample",
        "Floating-point operations of the model per training sample.",
    ),
    _number("step_time_s", "Seconds per optimiser step of the slowest rank, mean."),
    _number("step_time_lo_s", "Lower end of its 95% block-bootstrap interval."),
    _number("step_time_hi_s", "Upper end."),
    _flag("settled", "Both halves of the step times agree, but for their scatter."),
    _text(
        "step_time_bound",
        "at_most or at_least: later steps take less, or more; missing where settled.",
    ),
    _number(
        "window_step_time_s",
        "Of a long trial: step time while other trials would measure.",
    ),
    _number("later_step_time_s", "Of a long trial: step time after that window."),
    _text(
        "later_differs",
        "Why it is another: pauses, first_epoch or unexplained; missing where it is "
        "not, or the window had not settled.",
    ),
    _number("first_epoch_s", "Seconds that the first epoch takes longer than another."),
    _integer("first_epoch_samples", "Samples of that epoch."),
    _number("data_wait_s", "Seconds per step waiting for input."),
    _number("compute_s", "Seconds per step in forward and backward."),
    _number("exposed_sync_s", "Seconds per step of gradient exchange not hidden."),
    _number("optimizer_s", "Seconds per step in the optimiser."),
    _number(
        "bubble_share", "Share of a pipeline's time in which stages compute nothing."
    ),
    _number(
        "throughput_samples_per_s", "Global samples per second of the slowest rank."
    ),
    _number(
        "reported_step_time_s", "Seconds per step by the rate that the program prints."
    ),
    _number(
        "cpu_share",
        "Share of the time in which its threads could run that they ran; the rest they "
        "waited for a core.",
    ),
    _number(
        "other_cpu_share",
        "Share of the time of its node's cores that other programs took.",
    ),
    _number("cpu_pressure_start", "Share of the 10 s before in which tasks waited."),
    _number("cpu_pressure_end", "Share of its last 10 s in which tasks waited."),
    _number("load_average", "Load average of its last minute."),
    _flag("busy_machine", "Other programs took cores that the trial waited for."),
    _integer("cores_at_hand", "Cores of its node that it may use."),
    _flag("gpu_throttled", "A device had lower clocks for heat or a power brake."),
    _text(
        "ranks_witness",
        "What showed that the ranks met: engine, inside, store, framework, sockets, "
        "same_data, alone or not_witnessed; for one rank missing, or one_process of a "
        "program on a CPU that joins no others.",
    ),
    _text("measured_by", "What saw the steps: engine, inside or log."),
    _text(
        "samples_witness",
        "What confirmed the samples of a step: engine, loader, model, log, rate or "
        "not_witnessed.",
    ),
    _number(
        "samples_per_step",
        "Samples that all ranks trained on in a step, a mean; missing where not seen.",
    ),
    _text(
        "samples_differ",
        "Why they are not those asked for: batch_sizes, passes, loaders, model or "
        "unexplained.",
    ),
    _integer(
        "steps_missed",
        "Steps that were asked for and not taken, since the program ended.",
    ),
    _number(
        "samples_of_pass", "Samples that all ranks draw in a pass over their loaders."
    ),
    _number("samples_of_dataset", "Samples of the data set that a rank draws from."),
    _text("first_losses", "The first four losses of a command, where they change."),
    _text("target_metric", "Metric of the target."),
    _text("metric_mode", "min or max."),
    _number("target_value", "Threshold of the target."),
    _flag("reached_target", "The metric reached the target."),
    _flag("diverged", "The target metric, or else the loss, ended as nan or inf."),
    _integer("steps_to_target", "Optimiser steps until then."),
    _integer("samples_to_target", "Training samples until then."),
    _number("time_to_target_s", "Training seconds until then, evaluation excluded."),
    _number("evaluation_s", "Seconds spent evaluating."),
    _number(
        "evaluation_interval_samples", "Training samples between evaluations, a mean."
    ),
    _number("final_metric", "Last value of the target metric."),
    _number(
        "staleness_mean", "Messages of others served since a worker's last, a mean."
    ),
    _integer("staleness_max", "The most such messages."),
    _text("final_metrics", "All metrics of the last evaluation, as JSON."),
    _flag("accepted", "The last evaluation holds what accept asks."),
    _number("gradient_noise_scale", "Simple noise scale, samples."),
    _number("gpu_utilization", "Mean share of time a kernel ran, in [0, 1]."),
    _integer("gpu_memory_peak_bytes", "Peak memory of the fullest device."),
    _integer("gpu_memory_bytes", "Memory a rank can have of the smallest device."),
    _number("energy_j", "Joules of the trial's own devices."),
    _number("device_power_w", "Watts of a device between its first and last steps."),
    _text("energy_source", "measured or modelled."),
    _number("allocated_gpu_s", "Device-seconds held, from placement to release."),
    _number("queue_wait_s", "Seconds the batch system kept the nodes waiting."),
    _number("start_up_s", "Seconds from launch to the first step."),
    _time("started_at", "Launch, UTC."),
    _time("ended_at", "End, UTC."),
    _list("hosts", "Host names by node."),
    _text("versions", "Versions of what ran, as JSON."),
    _list("validity", "Reasons that make the row unfit for a fit."),
)

COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}

# Columns that name the target of a training.
TARGET_COLUMNS = ("target_metric", "metric_mode", "target_value")

# Columns that tell curves of step time apart, as further axes do.
CURVE_COLUMNS = (
    "workload",
    "dataset",
    "emulated",
    "device_type",
    "device_name",
    "node_group",
    "parallelism",
    "precision",
    "sequence_length",
    "optimizer",
    "threads_per_rank",
)
