"""The quantities of a training, and what tables, command lines and logs call them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A quantity by our name, and the names that it has elsewhere, in small letters."""

    headers: str = ""  # of a table's columns; signs are underscores
    flags: str = ""  # of a command line, the surest first
    fields: str = ""  # of a log in CSV, the surest first


_ACCUMULATION = (
    "grad_accumulation_steps accumulation_steps accumulate_grad_batches "
    "grad_accum_steps grad_accum accum_steps accum_iter"
)
# In the order in which options are looked for.
QUANTITIES: Mapping[str, Quantity] = {
    "local_batch_size": Quantity(
        headers=(
            "local_batch local_bsz per_gpu_batch per_gpu_batch_size batch_size_per_gpu "
            "batch_per_gpu batch_size_gpu batch_gpu batch_size_per_device "
            "per_device_batch_size batch_per_device per_device_train_batch_size "
            "micro_batch_size micro_batch mbs bs_per_gpu bs_gpu"
        ),
        flags=(
            "per_device_train_batch_size local_batch_size micro_batch_size "
            "train_batch_size batch_size batch_size_per_gpu per_gpu_batch_size "
            "batchsize bs"
        ),
    ),
    "global_batch_size": Quantity(
        headers=(
            "global_batch global_bsz gbs global_bs effective_batch_size "
            "effective_batch total_batch_size total_batch batch_size_total "
            "batch_size_global batch_total batch_global"
        ),
        flags="global_batch_size total_batch_size effective_batch_size",
    ),
    "gradient_accumulation_steps": Quantity(
        headers=(
            f"{_ACCUMULATION} gradient_accumulation grad_accumulation accumulation "
            "grad_acc gradient_acc grad_acc_steps ga gas"
        ),
        flags=(
            f"gradient_accumulation_steps {_ACCUMULATION} accumulate accum accum_freq "
            "update_freq"
        ),
    ),
    "learning_rate": Quantity(flags="learning_rate lr base_lr"),
    "seed": Quantity(flags="seed random_seed manual_seed"),
    "trial_dir": Quantity(
        flags=(
            "output_dir out_dir outdir save_dir checkpoint_dir log_dir logdir work_dir "
            "workdir results_dir run_dir output out outf output_file output_path "
            "out_file out_path outfile save save_file save_path save_to results_file "
            "log_file logfile"
        )
    ),
    "precision": Quantity(
        headers="dtype data_type", flags="precision dtype amp_dtype mixed_precision"
    ),
    "steps": Quantity(
        flags="max_steps max_iters train_iters num_steps num_train_steps steps"
    ),
    "epochs": Quantity(flags="num_train_epochs num_epochs max_epochs n_epochs epochs"),
    "workload": Quantity(
        headers="model model_name benchmark network net architecture workload_name"
    ),
    "device_name": Quantity(
        headers=(
            "gpu_type gpu_model gpu_name accelerator_type accelerator_name "
            "accelerator_model tpu_type tpu_version hardware"
        )
    ),
    "num_nodes": Quantity(
        headers=(
            "nodes node n_nodes nnodes node_count number_of_nodes no_of_nodes "
            "num_hosts servers num_servers machines num_machines instances "
            "num_instances instance_count number_of_instances"
        )
    ),
    "world_size": Quantity(
        headers=(
            "num_gpus n_gpus ngpus n_gpu num_gpu gpu_count total_gpus number_of_gpus "
            "no_of_gpus num_devices device_count ranks num_accelerators "
            "accelerator_count tpus num_tpus chips num_chips number_of_devices "
            "no_of_devices"
        )
    ),
    "gpus_per_node": Quantity(
        headers=(
            "devices_per_node ranks_per_node gpus_per_server gpus_per_host "
            "gpus_per_machine gpu_per_node gpus_node chips_per_host "
            "accelerators_per_node local_world_size"
        )
    ),
    "data_parallel_size": Quantity(
        headers="dp dp_size data_parallel data_parallel_degree"
    ),
    "throughput_samples_per_s": Quantity(headers="throughput train_throughput"),
    "parallelism": Quantity(headers="parallel_strategy"),
    "sequence_length": Quantity(
        headers=(
            "seq_len seqlen sequence_len seq_length max_seq_len max_seq_length "
            "context_length tokens_per_sample"
        )
    ),
    "optimizer": Quantity(headers="optimiser optim"),
    "steps_to_target": Quantity(headers="iterations_to_target"),
    "outcome": Quantity(headers="status"),
    "step": Quantity(
        fields=(
            "step global_step steps num_steps train_step training_step optimizer_step "
            "iteration iterations iter iters update updates trainer/global_step"
        )
    ),
    "samples": Quantity(
        fields=(
            "samples num_samples samples_seen seen_samples consumed_samples "
            "total_samples images_seen"
        )
    ),
    "t": Quantity(fields="t"),
}
FLAGS: Mapping[str, Sequence[str]] = {
    name: quantity.flags.split()
    for name, quantity in QUANTITIES.items()
    if quantity.flags
}
FIELDS: Mapping[str, Sequence[str]] = {
    name: quantity.fields.split()
    for name, quantity in QUANTITIES.items()
    if quantity.fields
}

# What is counted or timed, as it is written with numbers.
SAMPLES = (
    "samples sample images image imgs img pictures examples example sequences "
    "sequence seqs seq sentences sentence items"
).split()
TOKENS = "tokens token toks tok".split()
STEPS = (
    "steps step iterations iteration iters iter its it batches batch updates update"
).split()
DEVICES = "gpu device chip accelerator tpu rank".split()

SECONDS: Mapping[str, float] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "usec", "microseconds"), 1e-6),
    "ns": 1e-9,
    **dict.fromkeys(("min", "mins", "minutes"), 60.0),
    **dict.fromkeys(("h", "hours"), 3600.0),
}
BYTES: Mapping[str, float] = {
    **dict.fromkeys(("b", "bytes"), 1.0),
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", 1)},
}
