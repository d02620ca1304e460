"""The devices of this machine: its GPUs, or its cores where there is no GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pynvml

from scalelab.errors import ClusterError
from scalelab.site.profile import cpu_name, listed_gpus


def local_devices(device_type: str) -> tuple[str, ...]:
    """Return the devices this process may use."""
    if device_type == "cpu":
        return tuple(str(core) for core in sorted(os.sched_getaffinity(0)))
    ids = listed_gpus()
    if ids is None:
        ids = tuple(map(str, range(_num_cuda_devices())))

    if not ids:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise ClusterError(
            "device_type=cuda, but this machine offers no CUDA device "
            f"(CUDA_VISIBLE_DEVICES={visible!r}). Use device_type: cpu, or run where "
            "nvidia-smi lists a GPU."
        )

    return ids


def granted_devices(device_type: str, num_devices: int) -> tuple[str, ...]:
    """Return the devices of a batch job on its node."""
    present = local_devices(device_type)
    if device_type == "cpu":
        return tuple(present[index % len(present)] for index in range(num_devices))

    if len(present) < num_devices:
        raise ClusterError(
            f"The job asked for {num_devices} GPUs on each node and sees "
            f"{len(present)} here ({', '.join(present)}). Correct gpus_per_node or the "
            "GPU request in the site."
        )

    if "CUDA_VISIBLE_DEVICES" not in os.environ and len(present) > num_devices:
        raise ClusterError(
            f"The job asked for {num_devices} of this node's {len(present)} GPUs, and "
            "the batch system does not say which: CUDA_VISIBLE_DEVICES is not set. Ask "
            f"for whole nodes, gpus_per_node: {len(present)}, or set the variable in "
            "the site's prologue."
        )

    granted = tuple(map(_uuid, present[:num_devices]))
    if num_devices > 1 and any(device.startswith("MIG-") for device in granted):
        raise ClusterError(
            f"The job's devices are slices of GPUs ({', '.join(granted)}), and NCCL "
            "connects no ranks on slices. Write gpus_per_node: 1 in the site and run "
            "trials of one rank."
        )

    return granted


def device_name(device_type: str, device_ids: tuple[str, ...]) -> str:
    """Return the model of the devices, e.g. ``NVIDIA A100-SXM4-40GB``."""
    if device_type == "cpu":
        return cpu_name()
    first = device_ids[0]
    with _nvml():
        if first.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(first))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(first.encode())
        return str(pynvml.nvmlDeviceGetName(handle))


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _num_cuda_devices() -> int:
    with suppress(pynvml.NVMLError), _nvml():
        return int(pynvml.nvmlDeviceGetCount())
    return 0


def _uuid(device_id: str) -> str:
    """Return the UUID of a GPU; the index itself where NVML cannot say."""
    if device_id.isdigit():
        with suppress(pynvml.NVMLError), _nvml():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(device_id))
            return str(pynvml.nvmlDeviceGetUUID(handle))
    return device_id
