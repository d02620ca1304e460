"""The evidence of a run: what its measurements show besides the answer."""

from __future__ import annotations

import pandas as pd

from scalelab.laws.convergence.time_to_target import (
    Factorisation,
    measured_factorisation,
)
from scalelab.laws.rows import FitRows
from scalelab.recommend.answer.evidence import Evidence, WholeRun
from scalelab.recommend.prediction.consistency import steadiness
from scalelab.recommend.ways import ways


def evidence(
    rows: FitRows, compared: pd.DataFrame, factorisation: Factorisation | None
) -> Evidence:
    """Return what rows show; ways to train are those of the ``compared`` rows."""
    runs = [] if factorisation is None else factorisation.trials.to_dict("records")
    names = ("world_size", "global_batch_size", "measured_s", "predicted_s")
    return Evidence(
        ways=ways(compared),
        steadiness=steadiness(rows),
        whole_runs=tuple(WholeRun(**{n: float(run[n]) for n in names}) for run in runs),
    )


def evidence_without_answer(rows: FitRows) -> Evidence:
    """Return what rows show that no answer rests on."""
    return evidence(rows, rows.observations, measured_factorisation(rows))
