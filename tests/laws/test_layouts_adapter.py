"""Step times over layouts: a model's rows inform its other layouts."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from layouts_adapter import predict


def rows(model: str, device_s: float, **columns: object) -> pd.DataFrame:
    """Rows of a model of one device time per sample, on several layouts."""
    found = pd.DataFrame(
        {
            "workload": model,
            "gpu_type": "V100",
            "gpus": [16, 16, 32, 64],
            "nodes": [4, 4, 8, 16],
            "local_batch": [1, 2, 2, 4],
            "accum_steps": [16, 16, 8, 8],
            "tp": [4, 4, 2, 4],
            "pp": [4, 2, 4, 8],
        }
    ).assign(**columns)
    samples = found["local_batch"] * found["accum_steps"]
    return found.assign(step_time_s=device_s * samples / (found["tp"] * found["pp"]))


def test_an_unknown_layout_is_taken_to_need_the_models_device_time() -> None:
    known = pd.concat([rows("small", 2.0), rows("large", 10.0)])
    asked = rows("small", 2.0, tp=8, pp=1).iloc[:1]
    answer = predict(known, asked.drop(columns="step_time_s")).iloc[0]
    assert answer["step_time_s"] == pytest.approx(asked["step_time_s"].item(), rel=0.1)
    assert answer["step_time_hi_s"] < 1.5 * answer["step_time_lo_s"]


def test_every_row_is_answered_and_an_unknown_model_with_a_wide_interval() -> None:
    asked = pd.concat([rows("small", 2.0), rows("other", 1.0, tp=np.nan)])
    answer = predict(rows("small", 2.0), asked.drop(columns="step_time_s"))
    assert len(answer) == len(asked)
    assert answer.notna().to_numpy().all()
    width = answer["step_time_hi_s"] / answer["step_time_lo_s"]
    assert width[:4].max() < 1.5
    assert width[4:].min() > 100


def test_one_odd_row_hardly_moves_the_others() -> None:
    known = rows("small", 2.0)
    odd = known.iloc[[-1]].assign(local_batch=8, step_time_s=30.0)
    asked = known.drop(columns="step_time_s")
    before, after = (predict(t, asked) for t in (known, pd.concat([known, odd])))
    moved = np.log(after["step_time_s"] / before["step_time_s"])[:3]
    assert np.abs(moved).max() < 0.1
