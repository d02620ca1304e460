import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalelab.training.probes.device_monitor import DeviceMonitor

GPU = torch.device("cuda", 0)


class NVMLError(Exception):
    pass


class StubNvml:
    """Stands in for NVML and a device that has used 2 J since each reading."""

    NVMLError = NVMLError

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.energy_mj = 5000

    def nvmlInit(self) -> None:
        self._answer("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-1234"
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int | None:
        self._answer("energy")
        self.energy_mj += 2000
        return self.energy_mj

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace | None:
        self._answer("utilization")
        return SimpleNamespace(gpu=80)

    def _answer(self, question: str) -> None:
        if question in self.broken:
            raise NVMLError(question)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any] | None:
    def install(nvml: StubNvml | None) -> Callable[..., Any] | None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234")
        )

    return install


def test_device_that_counts_gives_energy_and_utilization(
    install: Callable[..., Any],
) -> None:
    install(StubNvml())
    monitor = DeviceMonitor(GPU)
    assert monitor.utilization is None
    monitor.sample()
    assert monitor.utilization == 0.8
    assert monitor.energy_j == 4.0  # read for the sample, and now


def test_power_is_that_between_the_first_sample_and_the_last(
    install: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 104.0, 108.0))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    install(StubNvml())
    monitor = DeviceMonitor(GPU)
    assert monitor.power_w is None
    monitor.sample()
    assert monitor.power_w is None
    monitor.sample()
    assert monitor.power_w == 0.5
    monitor.sample()
    assert monitor.power_w == 0.5  # 4 J in 8 s


def test_within_a_second_the_counter_tells_no_power(
    install: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter((100.0, 100.5))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    install(StubNvml())
    monitor = DeviceMonitor(GPU)
    monitor.sample()
    monitor.sample()
    assert monitor.power_w is None


@pytest.mark.parametrize("broken", [("init",), ("energy", "utilization")])
def test_silent_device_leaves_readings_missing(
    install: Callable[..., Any], broken: tuple[Any, ...]
) -> None:
    install(StubNvml(*broken))
    monitor = DeviceMonitor(GPU)
    monitor.sample()
    assert monitor.utilization is None
    assert monitor.energy_j is None
    assert monitor.power_w is None


def test_without_nvml_readings_are_missing(install: Callable[..., Any]) -> None:
    install(None)
    monitor = DeviceMonitor(GPU)
    monitor.sample()
    assert monitor.energy_j is None


def test_cpu_has_no_readings() -> None:
    monitor = DeviceMonitor(torch.device("cpu"))
    monitor.sample()
    assert (monitor.utilization, monitor.energy_j) == (None, None)
