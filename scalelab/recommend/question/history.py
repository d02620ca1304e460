"""What else was measured that a run's step times can be learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from scalelab.errors import SpecError
from scalelab.inputs.numerals import counted
from scalelab.laws.rows import CurveKey, cells, split_curves, step_time_rows
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior, are_related


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
        frames = [_with_named_devices(name, frame) for name, frame in runs]
        return cls(
            observations=pd.concat(frames, ignore_index=True),
            names=tuple(name for name, _ in runs),
        )

    def teaches(self, observations: pd.DataFrame) -> bool:
        """Tell whether a curve of these runs is related to one of the observations."""
        own = _curves(observations)
        return any(
            are_related(other, key)
            for other in _curves(self.observations)
            for key in own
        )

    def added_to(
        self, prior: StepTimePrior, asked: Sequence[CurveKey]
    ) -> tuple[StepTimePrior, str]:
        """Return the prior about some curves that these runs teach, and say so.

        Raises
        ------
        SpecError
            Nothing here is related to them.
        """
        known = prior.taught_by(self.observations, asked)
        count = len(known.relatives) - len(prior.relatives)
        names = ", ".join(self.names)
        if not count:
            raise SpecError(
                f"Nothing can be learned from {names}: no curve there that was timed "
                "has the same device_type, device_name, node_group and parallelism, or "
                "is the same workload in everything but the device. Name runs that "
                "share one."
            )
        curves = counted(count, "curve")
        return known, f"Step times were also learned from {curves} of {names}."


@dataclass(frozen=True, kw_only=True, slots=True)
class LawWithTransfer:
    """A law fitted with what other curves teach.

    Parameters
    ----------
    law
        The law.
    note
        What it was taught by other runs, in words; empty where by none.
    knows_scale
        Other curves of the machine determine what more devices, or nodes, cost.
    """

    law: StepTimeLaw
    note: str
    knows_scale: bool

    @classmethod
    def fit(
        cls,
        law: type[StepTimeLaw],
        frame: pd.DataFrame,
        *,
        rest: pd.DataFrame | None = None,
        history: History | None = None,
    ) -> LawWithTransfer:
        """Fit a law.

        Parameters
        ----------
        law
            Its class.
        frame
            Rows that are asked about.
        rest
            The other rows of the same run; None: none. Those on an asked curve were
            left out on purpose, and teach nothing.
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
            return cls(law=law.fit(frame), note="", knows_scale=False)
        asked = _curves(frame)
        prior, note = StepTimePrior.shipped(), ""
        if rest is not None:
            prior = prior.taught_by(_without(rest, asked), asked)
        if history is not None and asked:
            prior, note = history.added_to(prior, asked)
        told = frozenset().union(*(prior.told_about(key) for key in asked))
        knows_scale = any(name.startswith(("intra_", "inter_")) for name in told)
        return cls(law=law.fit(frame, prior), note=note, knows_scale=knows_scale)


def _curves(observations: pd.DataFrame) -> tuple[CurveKey, ...]:
    """Return the curves that have a step time."""
    rows = step_time_rows(observations).frame
    return tuple(split_curves(rows)) if len(rows) else ()


def _without(observations: pd.DataFrame, keys: Sequence[CurveKey]) -> pd.DataFrame:
    others = [
        frame for key, frame in split_curves(observations).items() if key not in keys
    ]
    return pd.concat(others) if others else observations.iloc[:0]


def _with_named_devices(name: str, observations: pd.DataFrame) -> pd.DataFrame:
    """Name devices that have no name: nothing says that two runs had the same."""
    devices = [
        device if isinstance(device, str) else f"that of {name}"
        for device in cells(observations, "device_name")
    ]
    return observations.assign(device_name=devices)
