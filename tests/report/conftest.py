"""A usual run and its recommendation."""

import numpy as np
import pandas as pd
import pytest
from made_up_runs import convergence_rows, planned, recommendation, strong_scaling

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame
from scalelab.report.subject import ReportSubject


@pytest.fixture(scope="module")
def observations() -> pd.DataFrame:
    """Strong scaling to 16 GPUs and convergence over batches, one curve."""
    rng = np.random.default_rng(20261120)
    return frame(strong_scaling((1, 2, 4, 8, 16), rng) + convergence_rows(rng))


@pytest.fixture(scope="module")
def answered() -> Recommendation:
    """16 of up to 32 GPUs, 32 extrapolated."""
    return recommendation(planned((1, 2, 4, 8, 16, 32), chosen=16, measured_up_to=16))


@pytest.fixture(scope="module")
def subject(observations: pd.DataFrame, answered: Recommendation) -> ReportSubject:
    return ReportSubject.of(observations, answered)
