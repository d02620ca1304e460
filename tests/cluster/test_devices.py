import os
from types import SimpleNamespace
from typing import Any

import pytest

from scalelab.cluster import devices
from scalelab.cluster.devices import device_name, granted_devices, local_devices
from scalelab.cluster.local import divide_devices
from scalelab.errors import ClusterError


class FakeNvml(SimpleNamespace):
    """NVML of a machine with two GPUs, or of one without the driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, number: int | None) -> None:
        super().__init__(number=number, is_open=False)

    def nvmlInit(self) -> None:
        if self.number is None:
            raise self.NVMLError("driver not loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        assert self.is_open
        assert self.number is not None
        return self.number

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return ("index", index)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> Any:
        return ("uuid", uuid)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        assert self.is_open
        return f"GPU-uuid-{handle[1]}"

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return f"GPU by {handle[0]} {handle[1]!r}"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    nvml = FakeNvml(2)
    monkeypatch.setattr(devices, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def test_cores_are_those_this_process_may_use() -> None:
    assert local_devices("cpu") == tuple(map(str, sorted(os.sched_getaffinity(0))))
    assert device_name("cpu", ("0",))


def test_gpus_are_what_the_environment_names_or_the_driver_knows(
    two_gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_devices("cuda") == ("0", "1")
    assert not two_gpus.is_open
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8f3a, 1")
    assert local_devices("cuda") == ("GPU-8f3a", "1")
    assert device_name("cuda", ("1",)) == "GPU by index 1"
    assert device_name("cuda", ("GPU-8f3a",)) == "GPU by uuid b'GPU-8f3a'"


@pytest.mark.parametrize(
    ("number", "visible"), [(None, None), (0, None), (2, ""), (2, "-1,0")]
)
def test_a_machine_without_gpus_says_so(
    number: int | None, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "pynvml", FakeNvml(number))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ClusterError, match="this machine offers no CUDA device"):
        local_devices("cuda")


def test_cores_are_divided_while_they_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7, 9})
    assert divide_devices(2, None, "cpu") == [("3", "5"), ("7", "9")]
    assert divide_devices(3, 1, "cpu") == [("3",), ("5",), ("7",)]
    assert divide_devices(8, None, "cpu") == [
        (core,) for core in ("3", "5", "7", "9", "3", "5", "7", "9")
    ]
    assert divide_devices(1, 6, "cpu") == [("3", "5", "7", "9", "3", "5")]


def test_gpus_are_never_shared(two_gpus: FakeNvml) -> None:
    assert divide_devices(2, None, "cuda") == [("0",), ("1",)]
    with pytest.raises(
        ClusterError,
        match=r"2 nodes x 2 CUDA devices are asked for, but this machine offers 2 ",
    ):
        divide_devices(2, 2, "cuda")


def test_a_job_s_cores_are_as_many_as_it_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 7})
    assert granted_devices("cpu", 1) == ("4",)
    assert granted_devices("cpu", 3) == ("4", "7", "4")


def test_a_job_s_gpus_are_those_the_batch_system_names(
    two_gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-abc")
    assert granted_devices("cuda", 2) == ("GPU-uuid-1", "GPU-abc")
    assert granted_devices("cuda", 1) == ("GPU-uuid-1",)
    with pytest.raises(ClusterError, match=r"asked for 4 GPUs .* sees 2 here \(1, GPU"):
        granted_devices("cuda", 4)


def test_a_share_of_a_node_whose_gpus_nobody_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("scalelab.cluster.devices._num_cuda_devices", lambda: 4)
    assert granted_devices("cuda", 4) == ("0", "1", "2", "3")
    with pytest.raises(
        ClusterError, match=r"2 of this node's 4 GPUs.*gpus_per_node: 4"
    ):
        granted_devices("cuda", 2)


def test_without_nvml_a_gpu_keeps_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "pynvml", FakeNvml(None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert granted_devices("cuda", 2) == ("0", "1")


def test_several_slices_of_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    assert granted_devices("cuda", 1) == ("MIG-a",)
    with pytest.raises(ClusterError, match=r"slices of GPUs .*NCCL"):
        granted_devices("cuda", 2)
