"""One machine, its rows and its truth."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, sweep_rows


@pytest.fixture(scope="session")
def machine() -> dict[str, float]:
    return {
        "gpus_per_node": 4,
        "fixed": 0.010,
        "per_sample": 0.002,
        "intra_latency": 2e-5,
        "intra_transfer": 0.006,
        "inter_latency": 3e-4,
        "inter_transfer": 0.05,
        "overlap": 0.0,
        "imbalance": 0.0,
    }


@pytest.fixture(scope="session")
def rows(machine: dict[str, float]) -> pd.DataFrame:
    return sweep_rows(machine, np.random.default_rng(7))


@pytest.fixture(scope="session")
def truth(machine: dict[str, float]) -> Callable[..., float]:
    def at(world_size: int, local_batch: float, accumulation: int = 1) -> float:
        return declared_step_time(machine, world_size, local_batch, accumulation)

    return at
