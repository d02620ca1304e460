"""What an answer rests on where trials failed, and why there may be none."""

import re
from collections.abc import Iterator

import pandas as pd

from scalelab.inputs.lines import one_line
from scalelab.inputs.outcome import Outcome
from scalelab.laws.rows import FitRows, numbers
from scalelab.plan.diverged import diverged_in_words, diverged_runs
from scalelab.plan.memory_limits import MemoryLimit, memory_limits
from scalelab.plan.source import Observation
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.reasons import why_ignored

_MOST_CHARACTERS = 120
_RANK = re.compile(r"\brank \d+\b", re.IGNORECASE)
_FAILED = {str(outcome) for outcome in Outcome if not outcome.is_measurement}


def of_any_rank(reason: str) -> str:
    """Return a reason without the number of the rank that gives it.

    >>> of_any_rank("rank 3 raised ValueError: no such file")
    'a rank raised ValueError: no such file'
    """
    return _RANK.sub("a rank", reason)


def limits_of_memory(observations: pd.DataFrame) -> tuple[MemoryLimit, ...]:
    """Return where trials of the observations frame ran out of device memory."""
    if "outcome" not in observations.columns or not (
        observations["outcome"].eq(Outcome.OUT_OF_MEMORY).any()
    ):
        return ()
    return memory_limits(_rows(observations))


def _rows(observations: pd.DataFrame) -> Iterator[Observation]:
    known = observations.astype(object).where(observations.notna(), None)
    for row in known.to_dict("records"):
        yield {str(name): row[name] for name in row}


def divergence(observations: pd.DataFrame) -> Iterator[Fact]:
    """Note how many runs diverged."""
    if "diverged" in observations.columns and observations["diverged"].any():
        yield Fact.of("diverged", **diverged_runs(_rows(observations)))


def why_no_answer(rows: FitRows) -> str:
    """Say why none of the rows has a usable step time, and what to do."""
    frame, left_out, num_rows = rows.observations, rows.left_out, len(rows.observations)
    if left_out == (((Outcome.OUT_OF_MEMORY,), num_rows),):
        smallest = numbers(frame, "local_batch_size").min()
        trials = "the one trial" if num_rows == 1 else f"each of {num_rows:,} trials"
        half = f", such as {smallest // 2:,.0f}" if smallest > 1 else ""
        return (
            f"Nothing fitted into memory: {trials} ran out of it, local batch "
            f"{smallest:,.0f} too. Try a smaller local_batch_size{half}, a precision "
            "of fewer bits, or parallelism: fsdp on more devices."
        )

    diverged = (diverged_in_words(**fact.values) for fact in divergence(frame))
    why = f": {why_ignored(left_out)}" if left_out else ""
    remedies = [*_remedies(rows)] or ["Run at least one throughput trial."]
    return (
        f"None of the {num_rows:,} rows has a usable step time{why}. "
        f"{' '.join([*diverged, *remedies])}"
    )


def _remedies(rows: FitRows) -> Iterator[str]:
    named = {reason for group in rows.left_out for reason in group.reasons}
    frame = rows.observations
    if "oversubscribed_cores" in named and (
        {"device_type", "device_ids"} <= {*frame.columns}
        and frame["device_type"].eq("cpu").all()
    ):
        # On CPU devices are cores, and one that several ranks share is named again.
        cores = max((len({*ids}) for ids in frame["device_ids"].dropna()), default=1)
        yield f"Declare no more slots than cores: gpus_per_node: {cores}."
    elif "oversubscribed_cores" in named:
        yield "Ask for as many cores as devices: cores_per_node."

    if Outcome.OUT_OF_MEMORY in named:
        yield "Try smaller local batches."
    if named & _FAILED:
        yield "`scalelab status` names what failed; mend it, then sweep --retry-failed."


def failures(observations: pd.DataFrame) -> Iterator[Fact]:
    """Note how many trials measured something where others failed, and why those did.

    Of several reasons the most frequent one counts.
    """
    if not {"outcome", "trial_id", "reason"} <= {*observations.columns}:
        return
    outcomes = observations["outcome"]
    measured = outcomes.isin([outcome for outcome in Outcome if outcome.is_measurement])
    retried = outcomes.isin([outcome for outcome in Outcome if outcome.is_retried])
    trials = observations["trial_id"]
    failed = observations[~retried & ~trials.isin(trials[measured])]
    too_large = outcomes.eq(Outcome.OUT_OF_MEMORY).fillna(False)
    fitting = trials[measured & ~too_large]
    num_unfitting = trials[too_large & ~trials.isin(fitting)].nunique()

    num_trials, num_failed = trials.nunique(), failed["trial_id"].nunique()
    if not num_failed:
        return

    given = failed["reason"].fillna(failed["outcome"].str.replace("_", " "))
    alike = given.map(of_any_rank)
    reasons = alike.value_counts()
    given_reasons = given[alike == reasons.index[0]].unique()
    reason = given_reasons[0] if len(given_reasons) == 1 else reasons.index[0]

    reason = one_line(str(reason)).rstrip(".")
    if len(reason) > _MOST_CHARACTERS:
        reason = f"{reason[: _MOST_CHARACTERS - 4]} ..."

    yield Fact.of(
        "failures",
        num_trials=num_trials,
        num_measured=num_trials - num_failed - num_unfitting,
        num_unfitting=num_unfitting,
        num_failed=num_failed,
        num_reasons=len(reasons),
        num_alike=int(reasons.iloc[0]),
        reason=reason,
    )
