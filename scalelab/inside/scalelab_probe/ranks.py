"""What shows whether ranks train together: parameters, gradients and first batches.

Of each, only a hash is kept, of up to some thousand values spread over it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
import zlib
from typing import Any, Iterator

_MOST_VALUES = 1024
_MOST_DEPTH, _MOST_MEMBERS = 4, 32
_MOST_FILES = 200
# Under these names launchers number the processes that they start.
_NUMBERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
# These exchange gradients, or hold parameters, in ways of their own.
_ENGINES = ("deepspeed", "horovod.torch", "megatron", "colossalai", "bagua")


def of_optimizer(optimizer: Any, *, may_wait: bool) -> dict[str, Any]:
    """Return what an optimizer holds.

    Hashes are those of three parameters that have a gradient, and of the gradients. On
    an accelerator they are made only where the program ``may_wait``: for all that is
    under way there.
    """
    parameters = [
        parameter for group in optimizer.param_groups for parameter in group["params"]
    ]
    first = parameters[0]
    is_split = any(map(_is_split, parameters))
    facts = {
        "name": type(optimizer).__name__,
        "num_parameters": sum(parameter.numel() for parameter in parameters),
        "shapes": zlib.crc32(
            repr([parameter.shape for parameter in parameters]).encode()
        ),
        "device": str(first.device),
        "is_split": is_split,
    }

    trained = [parameter for parameter in parameters if parameter.grad is not None]
    if trained and not is_split and (first.device.type == "cpu" or may_wait):
        places = sorted({0, len(trained) // 2, len(trained) - 1})
        facts["parameters"] = [_hash(trained[at]) for at in places]
        facts["gradients"] = [_hash(trained[at].grad) for at in places]

    return facts


def of_batch(batch: Any) -> int | None:
    """Return a hash of the tensors of a batch; None where there are none."""
    found = [_hash(tensor) for tensor in _tensors(batch) if tensor.device.type == "cpu"]
    return zlib.crc32(repr(found).encode()) if found else None


def of_process() -> dict[str, Any]:
    """Return what PyTorch, or the launcher, says of this process among the ranks."""
    number = next((os.environ[name] for name in _NUMBERS if name in os.environ), "")
    facts: dict[str, Any] = {
        "rank": int(number) if number.isdigit() else None,
        "engines": [name for name in _ENGINES if name in sys.modules],
        "host": os.uname().nodename,
        "clock_s": time.time(),
        "peak_bytes": _peak_bytes(),
    }

    distributed = sys.modules["torch.distributed"]
    if distributed.is_available() and distributed.is_initialized():
        facts.update(
            rank=distributed.get_rank(),
            world_size=distributed.get_world_size(),
            backend=str(distributed.get_backend()),
            exchanges=_num_exchanges(distributed),
        )

    return facts


def of_code() -> int | None:
    """Return a hash of the program's own files; None where it has none.

    They are its script, and what it has imported from the script's folder and below.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None or not os.path.isfile(script):
        return None

    folder = os.path.join(os.path.dirname(os.path.abspath(script)), "")
    known = [getattr(module, "__dict__", {}) for module in [*sys.modules.values()]]
    modules = [values.get("__file__") for values in known]
    names = {os.path.abspath(name) for name in modules if isinstance(name, str)}
    inside = [n for n in names if n.startswith(folder) and "site-packages" not in n]

    code = 0
    for name in sorted(filter(os.path.isfile, inside))[:_MOST_FILES]:
        with open(name, "rb") as file:
            code = zlib.crc32(name[len(folder) :].encode() + file.read(), code)
    return code


def captures() -> bool:
    """Tell whether a CUDA graph is being captured, which a look at values would end."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _peak_bytes() -> int:
    # of the device's memory that tensors had, else of this process
    cuda = sys.modules["torch"].cuda
    if cuda.is_available() and cuda.is_initialized():
        return int(cuda.max_memory_allocated())
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _num_exchanges(distributed: Any) -> int | None:
    # The collective operations of the default group; only a private function tells.
    try:
        group = distributed.distributed_c10d._get_default_group()
        return int(group._get_sequence_number_for_group())
    except Exception:
        return None


def _is_split(parameter: Any) -> bool:
    """Tell whether a rank holds a part of a parameter only."""
    is_flat = type(parameter).__name__ == "FlatParameter"
    return is_flat or hasattr(parameter, "_local_tensor")


def _hash(tensor: Any) -> int:
    import torch

    flat = tensor.detach().reshape(-1)
    spread = flat[:: max(1, len(flat) // _MOST_VALUES)][:_MOST_VALUES]
    values = spread.cpu().contiguous().view(torch.uint8)
    return zlib.crc32(bytes(values.tolist()))


def _tensors(batch: Any, depth: int = 0) -> Iterator[Any]:
    members: list[Any] = []
    if hasattr(batch, "numel") and hasattr(batch, "device"):
        if batch.numel():
            yield batch
    elif isinstance(batch, (list, tuple)):
        members = list(batch[:_MOST_MEMBERS])
    elif hasattr(batch, "items"):
        members = [value for _, value in batch.items()][:_MOST_MEMBERS]

    for member in members if depth < _MOST_DEPTH else ():
        yield from _tensors(member, depth + 1)
