"""The columns of the observations frame: name, type, unit and meaning.

``SCHEMA_VERSION`` rises with every change that an older reader would misread.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalelab.experiment.trial import PROGRAM

SCHEMA_VERSION = 2
OPTION_PREFIX = "options."
PROGRAM_COLUMN = f"{OPTION_PREFIX}{PROGRAM}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its pandas dtype and what a value means.

    ``text``, ``integer``, ``number``, ``flag``, ``time`` (UTC) or ``list`` (of text).
    """

    name: str
    kind: str
    meaning: str


def _columns(kind: str, /, **meanings: str) -> tuple[Column, ...]:
    return tuple(Column(name, kind, meaning) for name, meaning in meanings.items())


COLUMNS: tuple[Column, ...] = (
    *_columns("integer", schema_version="Version of these columns."),
    *_columns(
        "text",
        run="Name of the run.",
        trial_id="Hash of the configuration.",
    ),
    *_columns(
        "integer",
        repeat="0-based index among equal trials; from 1,000 on canaries.",
        attempt="1-based launch number of the trial.",
    ),
    *_columns(
        "text",
        outcome="How the attempt ended; see Outcome. pruned: early, by its source.",
        reason="Why, in a sentence; missing for completed.",
        kind="throughput, convergence, end_to_end or imported.",
        workload="Built-in name, module:Class, or the experiment's name.",
        dataset="Name and fingerprint of the training data.",
        code_hash="Hash of code and command, or of workload and parameters.",
    ),
    *_columns("flag", emulated="Times are declared, not measured."),
    *_columns(
        "text",
        parallelism="ddp, fsdp, local_sgd, ...",
        device_type="cpu, cuda or tpu.",
        device_name="Model of the device.",
        node_group="Node group of the site; missing where nodes are alike.",
    ),
    *_columns("list", device_ids="Devices by global rank."),
    *_columns("integer", num_nodes="Nodes."),
    *_columns("number", gpus_per_node="Devices per node, a mean where uneven."),
    *_columns(
        "integer",
        world_size="Ranks, one per device.",
        data_parallel_size="Ranks that see different samples.",
    ),
    *_columns("text", placement="Devices per node, e.g. 4+2."),
    *_columns("flag", exclusive_node="Nobody else could use the node."),
    *_columns(
        "integer",
        threads_per_rank="Threads a rank used for one operation.",
        local_batch_size="Samples per rank, or replica, per forward pass.",
        gradient_accumulation_steps="Forward passes per optimiser step.",
        global_batch_size="Samples per optimiser step over all ranks.",
        normalization_batch_size="Samples one batch-norm statistic sees.",
        sequence_length="Tokens per sample.",
    ),
    *_columns(
        "text",
        precision="fp32, bf16 or fp16.",
        optimizer="Optimiser class and momentum terms.",
        lr_rule="none, linear, sqrt or staleness.",
    ),
    *_columns(
        "number",
        base_learning_rate="Rate before the rule.",
        learning_rate="Rate after the rule and warm-up.",
    ),
    *_columns(
        "text",
        schedule="Shape of the rate over training.",
        sample_order="sharded: ranks draw from parts of the data; else missing.",
    ),
    *_columns(
        "integer",
        planned_steps="Optimiser steps the schedule was planned for.",
        seed="Seed of every generator and of the sample order.",
        num_parameters="Trainable parameters.",
        gradient_bytes="Bytes of one gradient exchange per rank.",
        num_steps="Measured optimiser steps, warm-up excluded.",
        num_samples="Training samples seen, warm-up included.",
    ),
    *_columns(
        "number",
        flops_per_sample="Floating-point operations of the model per training sample.",
        step_time_s="Seconds per optimiser step of the slowest rank, mean.",
        step_time_lo_s="Lower end of its 95% block-bootstrap interval.",
        step_time_hi_s="Upper end.",
        data_wait_s="Seconds per step waiting for input.",
        compute_s="Seconds per step in forward and backward.",
        exposed_sync_s="Seconds per step of gradient exchange not hidden.",
        optimizer_s="Seconds per step in the optimiser.",
        bubble_share="Share of a pipeline's time in which stages compute nothing.",
        throughput_samples_per_s="Global samples per second of the slowest rank.",
        reported_step_time_s="Seconds per step by the rate that the program prints.",
    ),
    *_columns(
        "text",
        ranks_witness="What showed that the ranks met: engine, store, framework, "
        "sockets or not_witnessed; missing for one rank.",
    ),
    *_columns(
        "text",
        target_metric="Metric of the target.",
        metric_mode="min or max.",
    ),
    *_columns("number", target_value="Threshold of the target."),
    *_columns("flag", reached_target="The metric reached the target."),
    *_columns(
        "integer",
        steps_to_target="Optimiser steps until then.",
        samples_to_target="Training samples until then.",
    ),
    *_columns(
        "number",
        time_to_target_s="Training seconds until then, evaluation excluded.",
        evaluation_s="Seconds spent evaluating.",
        evaluation_interval_samples="Training samples between evaluations, a mean.",
        final_metric="Last value of the target metric.",
    ),
    *_columns(
        "number",
        staleness_mean="Messages of others served since a worker's last, a mean.",
    ),
    *_columns("integer", staleness_max="The most such messages."),
    *_columns("text", final_metrics="All metrics of the last evaluation, as JSON."),
    *_columns("flag", accepted="The last evaluation holds what accept asks."),
    *_columns(
        "number",
        gradient_noise_scale="Simple noise scale, samples.",
        gpu_utilization="Mean share of time a kernel ran, in [0, 1].",
    ),
    *_columns(
        "integer",
        gpu_memory_peak_bytes="Peak memory of the fullest device.",
        gpu_memory_bytes="Memory a rank can have of the smallest device.",
    ),
    *_columns("number", energy_j="Joules of the trial's own devices."),
    *_columns("text", energy_source="measured or modelled."),
    *_columns(
        "number",
        allocated_gpu_s="Device-seconds held, from placement to release.",
        queue_wait_s="Seconds the batch system kept the nodes waiting.",
        start_up_s="Seconds from launch to the first step.",
    ),
    *_columns("time", started_at="Launch, UTC.", ended_at="End, UTC."),
    *_columns("list", hosts="Host names by node."),
    *_columns("text", versions="Versions of what ran, as JSON."),
    *_columns("list", validity="Reasons that make the row unfit for a fit."),
)

COLUMNS_BY_NAME = {column.name: column for column in COLUMNS}

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
"""Columns that tell curves of step time apart, as further axes do."""
