"""What else was measured that a run's step times can be learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from scalelab.errors import SpecError
from scalelab.laws.prior import StepTimePrior
from scalelab.laws.rows import split_curves, step_time_rows
from scalelab.laws.step_time import StepTimeLaw
from scalelab.recommend.numerals import counted


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Other runs that may teach.

    Parameters
    ----------
    observations
        Rows of their observations frames.
    names
        What to call them.
    """

    observations: pd.DataFrame
    names: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[tuple[str, pd.DataFrame]]) -> History | None:
        """Put runs together, each a name and its rows; None where there are none."""
        if not runs:
            return None
        names, frames = zip(*runs, strict=True)
        return cls(observations=pd.concat(frames, ignore_index=True), names=names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    """A law fitted with what other curves teach.

    Parameters
    ----------
    law
        The law.
    note
        What it was taught by other runs, in words; empty where by none.
    """

    law: StepTimeLaw
    note: str

    @classmethod
    def fit(
        cls,
        law: type[StepTimeLaw],
        frame: pd.DataFrame,
        *,
        rest: pd.DataFrame | None = None,
        history: History | None = None,
    ) -> Taught:
        """Fit a law.

        Parameters
        ----------
        law
            Its class.
        frame
            Rows that are asked about.
        rest
            The other rows of the same run; None: none.
        history
            Other runs; None: none.

        Raises
        ------
        FitError
            No row that is asked about has a usable step time.
        SpecError
            The law learns from the asked rows alone, or nothing in the history is
            related to them.
        """
        if law is not StepTimeLaw:
            if history is not None:
                raise SpecError(
                    f"The law {law.name!r} learns from the asked rows alone. Leave out "
                    "--law, or the runs to learn from."
                )
            return cls(law=law.fit(frame), note="")
        asked = tuple(split_curves(step_time_rows(frame).frame))
        prior = StepTimePrior.shipped()
        if rest is not None:
            prior = prior.taught_by(rest, asked)
        if history is None:
            return cls(law=law.fit(frame, prior), note="")
        known = prior.taught_by(history.observations, asked)
        count = len(known.relatives) - len(prior.relatives)
        names = ", ".join(history.names)
        if not count:
            raise SpecError(
                f"Nothing can be learned from {names}: no curve there was measured on "
                "the same kind of device with the same parallelism, or is the same "
                "workload in everything but the device. Name runs that share one."
            )
        note = (
            f"Step times were also learned from {counted(count, 'curve')} of {names}."
        )
        return cls(law=law.fit(frame, known), note=note)
