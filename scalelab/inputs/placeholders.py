"""Placeholders such as ``{rank}`` in command lines and environment values."""

import re
import shlex
from collections.abc import Mapping
from enum import StrEnum

# What every process of a trial reads alike; an axis must not have such a name.
TRIAL_PLACEHOLDERS: Mapping[str, str] = {
    "local_batch_size": "samples per rank, or replica, per forward pass",
    "global_batch_size": "samples per optimiser step over all ranks",
    "batch_size_per_node": "samples per forward pass over the ranks of a node",
    "gradient_accumulation_steps": "forward passes per optimiser step, of one rank",
    "accumulation_steps_of_all_ranks": "the same, added up over data-parallel ranks",
    "learning_rate": "rate after the rule, before warm-up",
    "base_learning_rate": "rate before the rule",
    "warmup_samples": "samples over which the rate rises",
    "world_size": "ranks in all",
    "num_nodes": "nodes",
    "gpus_per_node": "ranks on a node",
    "parallelism": "ddp, ...",
    "precision": "fp32, bf16 or fp16",
    "seed": "seed of the trial",
    "repeat": "index among equal trials; from 1,000 on canaries; 1,000,000: long",
    "trial_id": "hash of the configuration",
    "trial_dir": "the attempt's own directory",
}
# What every process of a trial reads as well where the experiment has a layout.
LAYOUT_PLACEHOLDERS: Mapping[str, str] = {
    "tensor_parallel_size": "ranks among which each layer is divided",
    "pipeline_parallel_size": "stages among which the layers are divided",
    "context_parallel_size": "ranks among which each sequence is divided",
    "expert_parallel_size": "data-parallel ranks among which experts are divided",
    "data_parallel_size": "replicas of the model, which see different samples",
    "data_replicate_size": "copies of the training state",
    "data_shard_size": "data-parallel ranks over which each copy is spread",
    "micro_batch_size": "samples per replica of one micro-batch of a pipeline",
}
# What differs between processes; an axis under ``options`` of the name is meant first,
# since ``rank`` is also a size of low-rank adapters.
PROCESS_PLACEHOLDERS: Mapping[str, str] = {
    "rank": "number of the process among all, from 0",
    "local_rank": "number of the process on its node, from 0",
    "node_rank": "number of the node, from 0",
    "num_processes": "processes that the launcher starts on all nodes",
    "master_addr": "address on the first node where the processes meet",
    "master_port": "its port",
    "rendezvous": "both, address:port",
    "coordinator": "the same, as JAX calls it",
}
# Placeholders every command may use; each axis under ``options`` is one more, and a
# layout adds its own.
PLACEHOLDERS: Mapping[str, str] = {**TRIAL_PLACEHOLDERS, **PROCESS_PLACEHOLDERS}

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


class Untold(StrEnum):
    """A value that the command line does not pass on."""

    LOCAL_BATCH = "local_batch_size"
    ACCUMULATION = "gradient_accumulation_steps"


def placeholders_in(template: str) -> list[str]:
    """Return the placeholders of a template, in order.

    Shell variables (``${HOME}``) and braces around anything but one word are not
    placeholders.

    >>> placeholders_in("train.py --lr {learning_rate} --out ${HOME}/{seed}")
    ['learning_rate', 'seed']
    """
    return _PLACEHOLDER.findall(template)


def fill_placeholders(template: str, values: Mapping[str, object]) -> str:
    """Return a template with its placeholders replaced; unknown ones stay.

    >>> fill_placeholders("--lr {learning_rate} {other}", {"learning_rate": 0.1})
    '--lr 0.1 {other}'
    """
    return _PLACEHOLDER.sub(
        lambda found: str(values[found[1]]) if found[1] in values else found[0],
        template,
    )


def _shown(expression: str) -> str:
    return f'"{expression}"' if "$" in expression else shlex.quote(expression)


def shell_word(template: str, expressions: Mapping[str, str]) -> str:
    """Return a template as one word of shell, its placeholders as shell expressions.

    Placeholders without an expression stay, and so does everything else that a shell
    would read.

    >>> print(shell_word("run {rank} of $HOME/{seed}", {"rank": "$RANK"}))
    'run '"$RANK"' of $HOME/{seed}'
    """
    text, *rest = _PLACEHOLDER.split(template)
    word = ""
    for name, following in zip(rest[::2], rest[1::2], strict=True):
        if name in expressions:
            word += (shlex.quote(text) if text else "") + _shown(expressions[name])
            text = following
        else:
            text += f"{{{name}}}{following}"
    return word + (shlex.quote(text) if text or not word else "")
