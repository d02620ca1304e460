"""The end of a sweep, and the exit code that says which one it was."""

from dataclasses import dataclass

from scalelab.errors import (
    INTERRUPTED,
    NOT_ALL_MEASURED,
    NOTHING_MEETS,
    ClusterError,
    SpecError,
)
from scalelab.inputs.outcome import Outcome
from scalelab.records.control.job_list import JobLine
from scalelab.scheduling.summary import SweepSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnd:
    """How a sweep ended: what it measured, who stopped it, and what it left behind."""

    summary: SweepSummary
    is_interrupted: bool  # by a signal or by `scalelab stop`
    left_jobs: tuple[JobLine, ...]  # they may hold nodes: nobody could cancel them

    @property
    def is_to_be_answered(self) -> bool:
        """The user waits for an answer, and the run may hold what it needs."""
        failed_first = bool(self.summary.unsound) and self.summary.stopped is not None
        has_nothing = failed_first and not self.summary.num_resumed
        return not self.is_interrupted and not has_nothing

    def exit_code(self, *, meets_limits: bool) -> int:
        """Return how ``scalelab sweep`` ends, the first reason of several.

        A sweep whose trials were all measured has done what it is for: it ends with 0,
        also where they allow no answer.

        Parameters
        ----------
        meets_limits
            Whether the answer keeps the limits of the experiment; True where there is
            no answer.
        """
        unsound = {row["outcome"] for row in self.summary.unsound}
        was_refused = Outcome.REFUSED in unsound and self.summary.stopped is not None
        reasons = {
            INTERRUPTED: self.is_interrupted,
            SpecError.exit_code: was_refused,
            ClusterError.exit_code: bool(self.left_jobs),
            NOTHING_MEETS: not meets_limits,
            NOT_ALL_MEASURED: bool(self.summary.num_failed or unsound),
        }
        return next((code for code, holds in reasons.items() if holds), 0)
