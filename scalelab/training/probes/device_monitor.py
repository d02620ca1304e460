"""Energy and utilisation of a rank's GPU, read from NVML between blocks of steps."""

import statistics
import time
from contextlib import suppress
from typing import Any

import torch

_LEAST_S = 1.0  # the counter moves ten times a second


class DeviceMonitor:
    """Watches one device; on CPU, and where NVML is missing or silent, it has nothing.

    Notes
    -----
    The energy counter is the device's own and exists since Volta; a MIG slice has none.
    NVML's utilisation is the share of its last sampling period, at most a second, in
    which a kernel ran.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._utilizations: list[float] = []
        self._energy_at_start_mj: int | None = None
        self._counted: list[tuple[float, int]] = []  # first and last time and energy
        if device.type == "cuda":
            self._open(device)

    def _open(self, device: torch.device) -> None:
        try:
            import pynvml
        except ModuleNotFoundError:
            return

        uuid = str(torch.cuda.get_device_properties(device).uuid)
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError:
            return

        self._nvml = pynvml
        self._energy_at_start_mj = self._energy_mj()

    def sample(self) -> None:
        """Read the present utilisation, and the energy so far."""
        if (energy_mj := self._energy_mj()) is not None:
            self._counted[1:] = [(time.monotonic(), energy_mj)]
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
                self._utilizations.append(rates.gpu / 100)

    @property
    def utilization(self) -> float | None:
        """Mean share of time a kernel ran, in [0, 1]; None where unknown."""
        return statistics.fmean(self._utilizations) if self._utilizations else None

    @property
    def energy_j(self) -> float | None:
        """Joules since the monitor was made; None where the device does not count."""
        now = self._energy_mj()
        if now is None or self._energy_at_start_mj is None:
            return None
        return (now - self._energy_at_start_mj) / 1e3

    @property
    def power_w(self) -> float | None:
        """Mean power from the first sample to the last; None within a second."""
        if len(self._counted) < 2:
            return None
        (start_s, start_mj), (end_s, end_mj) = self._counted
        elapsed_s = end_s - start_s
        return (end_mj - start_mj) / 1e3 / elapsed_s if elapsed_s >= _LEAST_S else None

    def _energy_mj(self) -> int | None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None
