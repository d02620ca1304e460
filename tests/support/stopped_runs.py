"""Runs that were stopped before they reached their target."""

import numpy as np
import pandas as pd


def stopped(runs: pd.DataFrame, budget: float) -> pd.DataFrame:
    """Stop every run at a budget of samples."""
    late = runs["samples_to_target"] > budget
    return runs.assign(
        samples_to_target=runs["samples_to_target"].where(~late),
        num_samples=runs["samples_to_target"].clip(upper=budget),
        reached_target=~late,
        outcome=np.where(late, "target_not_reached", "completed"),
    )
