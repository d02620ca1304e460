"""The end of a sweep, its reason, and the exit code that says which one it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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


class EndReason(StrEnum):
    """Why a sweep ended as it did; of several the first one here."""

    INTERRUPTED = "interrupted"
    REFUSED = "refused"  # the first trial cannot be started as asked
    JOBS_LEFT = "jobs_left"
    NOTHING_MEETS = "nothing_meets"
    NOT_ALL_MEASURED = "not_all_measured"
    DONE = "done"


EXIT: Mapping[EndReason, int] = {
    EndReason.INTERRUPTED: INTERRUPTED,
    EndReason.REFUSED: SpecError.exit_code,
    EndReason.JOBS_LEFT: ClusterError.exit_code,
    EndReason.NOTHING_MEETS: NOTHING_MEETS,
    EndReason.NOT_ALL_MEASURED: NOT_ALL_MEASURED,
    EndReason.DONE: 0,
}


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

    def reason(self, *, meets_limits: bool) -> EndReason:
        """Return why it ended so.

        A sweep whose trials were all measured has done what it is for, also where they
        allow no answer.

        Parameters
        ----------
        meets_limits
            Whether the answer keeps the limits of the experiment; True where there is
            no answer.
        """
        unsound = {row["outcome"] for row in self.summary.unsound}
        was_refused = Outcome.REFUSED in unsound and self.summary.stopped is not None
        holds = {
            EndReason.INTERRUPTED: self.is_interrupted,
            EndReason.REFUSED: was_refused,
            EndReason.JOBS_LEFT: bool(self.left_jobs),
            EndReason.NOTHING_MEETS: not meets_limits,
            EndReason.NOT_ALL_MEASURED: bool(self.summary.num_failed or unsound),
            EndReason.DONE: True,
        }
        return next(reason for reason in EndReason if holds[reason])
