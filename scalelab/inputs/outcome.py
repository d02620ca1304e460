"""How an attempt ended, and the basis of a prediction."""

from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt ended.

    ``out_of_memory`` (of the device), ``target_not_reached`` and ``pruned`` (ended by
    the source of trials before it was done) are measurements, not errors.
    ``timed_out``, ``preempted``, ``node_fail`` and ``cancelled`` say nothing about the
    configuration: the trial may be tried again.
    """

    COMPLETED = "completed"
    TARGET_NOT_REACHED = "target_not_reached"
    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    STALLED = "stalled"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    PRUNED = "pruned"

    @property
    def is_measurement(self) -> bool:
        """The outcome is knowledge about the configuration and ends the trial."""
        return self in (
            Outcome.COMPLETED,
            Outcome.TARGET_NOT_REACHED,
            Outcome.OUT_OF_MEMORY,
            Outcome.PRUNED,
        )

    @property
    def is_retried(self) -> bool:
        """The outcome is no fault of the configuration; the trial runs again."""
        return self in (Outcome.PREEMPTED, Outcome.NODE_FAIL, Outcome.CANCELLED)


class Support(StrEnum):
    """The basis of a prediction: what was measured of its configuration.

    A prediction that is *not measured here* needs a cost that no row of the curve, and
    no related curve of the same machine, contains, such as that of a second node.
    """

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    NOT_MEASURED = "not measured here"
