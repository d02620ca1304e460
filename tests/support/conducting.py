"""What stands where nodes and the driver do, for tests of what is above them."""

from collections.abc import Callable
from typing import Any, ClassVar

from scalelab.experiment.trial import Trial
from scalelab.inputs.outcome import Outcome
from scalelab.records.control.events import Progress, TrialEnded
from scalelab.scheduling.summary import FailedTrial, SweepSummary


class Nodes:
    """Nodes that never start."""

    dashboard_link = "http://127.0.0.1:1/status"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Conductor:
    """Stands where the driver does and ends the first trial as it is told.

    Attributes
    ----------
    made
        All that were made.
    input_errors
        One failed attempt of the first trial is reported for each.
    num_done
        How many trials have ended by then, of which one failed.
    meanwhile
        Called while the sweep runs.
    num_failed, stopped
        What the summary says.
    """

    made: ClassVar[list["Conductor"]] = []
    input_errors: ClassVar[tuple[str | None, ...]] = ()
    num_done: ClassVar[int] = 1
    meanwhile: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    num_failed: ClassVar[int] = 0
    stopped: ClassVar[str | None] = None

    def __init__(
        self, source: Any, cluster: Any, run: Any, programs: Any, **options: Any
    ) -> None:
        self.source, self.cluster, self.programs = source, cluster, programs
        self.opened = run
        self.on_event = options.pop("on_event")
        self.options = options
        self.num_drained = self.num_killed = 0
        Conductor.made.append(self)

    def drain(self) -> None:
        self.num_drained += 1

    def kill(self) -> None:
        self.num_killed += 1

    def run(self) -> SweepSummary:
        trial = self.source.ask()
        for error in self.input_errors:
            self.on_event(_failed(trial, error, self.num_done))
        type(self).meanwhile()
        tally = SweepSummary(stopped=self.stopped)
        for index in range(self.num_failed):
            tally.outcomes[Outcome.FAILED] += 1
            log = "rank-0.log" if index == 0 else None
            tally.failures.append(
                FailedTrial(trial=trial, outcome=Outcome.FAILED, reason="No.", log=log)
            )
        if self.stopped:
            tally.unfinished.append(trial)
        return tally


def _failed(trial: Trial, input_error: str | None, num_done: int) -> TrialEnded:
    return TrialEnded(
        trial_id=trial.trial_id,
        attempt=1,
        title=str(trial),
        program=trial.program,
        outcome=Outcome.FAILED,
        reason="It raised.",
        input_error=input_error,
        log=None,
        runs_again=False,
        progress=Progress(
            num_done=num_done,
            num_failed=1,
            num_running=0,
            num_waiting=7,
            used_gpu_s=3.6,
            num_devices=2,
        ),
    )
