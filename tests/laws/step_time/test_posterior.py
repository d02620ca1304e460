import numpy as np
import pandas as pd
import pytest

from scalelab.laws.rows import step_time_rows
from scalelab.laws.step_time import posterior
from scalelab.laws.step_time.physics import NAMES, ExchangeForm
from scalelab.laws.step_time.points import Points


def test_a_chain_six_times_as_long_gives_no_narrower_answer(
    rows: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = Points.of(step_time_rows(rows).frame)
    fitted = posterior.fit(points, ExchangeForm.TIERED)
    monkeypatch.setattr(posterior, "_NUM_STEPS", 6 * posterior._NUM_STEPS)
    settled = posterior.fit(points, ExchangeForm.TIERED)
    assert fitted.form_error < 1.5 * settled.form_error
    for name in ("compute_fixed", "compute_per_sample", "inter_node_transfer"):
        column = NAMES.index(name)
        widths = [
            np.subtract(*np.quantile(draws.parameters[:, column], [0.9, 0.1]))
            for draws in (fitted, settled)
        ]
        assert widths[0] == pytest.approx(widths[1], rel=0.5), name
