"""What an answer rests on where trials failed, in one sentence."""

from __future__ import annotations

import pandas as pd

from scalelab.inputs.lines import one_line
from scalelab.inputs.numerals import counted
from scalelab.inputs.outcome import Outcome

_MOST_CHARACTERS = 120


def failures_in_words(observations: pd.DataFrame) -> str:
    """Say how many trials measured something where others failed, and why those did.

    Parameters
    ----------
    observations
        Rows of the observations frame; a part of its columns says nothing. A trial
        failed if none of its attempts measured anything and one ended by its own fault.

    Returns
    -------
    str
        Empty where no trial failed.
    """
    if not {"outcome", "trial_id", "reason"} <= {*observations.columns}:
        return ""
    outcomes = observations["outcome"]
    measured = outcomes.isin([each for each in Outcome if each.is_measurement])
    retried = outcomes.isin([each for each in Outcome if each.is_retried])
    trials = observations["trial_id"]
    failed = observations[~retried & ~trials.isin(trials[measured])]
    too_large = outcomes.eq(Outcome.OUT_OF_MEMORY).fillna(False)
    timed = measured & ~too_large
    num_unfitting = trials[too_large & ~trials.isin(trials[timed])].nunique()
    num_trials, num_failed = trials.nunique(), failed["trial_id"].nunique()
    if not num_failed:
        return ""
    words = failed["outcome"].str.replace("_", " ")
    reasons = failed["reason"].fillna(words).value_counts()
    reason = one_line(str(reasons.index[0])).rstrip(".")
    if len(reason) > _MOST_CHARACTERS:
        reason = f"{reason[: _MOST_CHARACTERS - 4]} ..."
    most = "" if len(reasons) == 1 else f", {reasons.iloc[0]:,} of them"
    unfitting = f"; {num_unfitting:,} did not fit into memory" if num_unfitting else ""
    return (
        f"From {num_trials - num_failed - num_unfitting:,} of "
        f"{counted(num_trials, 'trial')}{unfitting}; {num_failed:,} failed{most}: "
        f"{reason}."
    )
