"""What was measured besides the answer, as plain values: shown beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import Interval, counted, number

# What an accuracy gap is against
BASELINE = (
    "one process at the same number of samples, the same global batch and the same seed"
)
DISTURBED = 0.1  # by which share a disturbed canary takes longer than usual
_UNDECIDED = 0.2  # the widest interval of a drift that is still informative
_MAX_NODES_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowNode:
    """A node that was significantly slower than the other nodes."""

    host: str
    # The relative difference of step times, with its 80% interval
    excess: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Steadiness:
    """Drift, slow nodes and disturbances, estimated from repeated trials."""

    num_canaries: int
    # From the first to the last start of a repeated trial
    hours: float
    # Relative change of step times over these hours, with its 80% interval; None if
    # there are too few repeats
    drift: Interval | None
    is_drifting: bool
    num_hosts: int
    # By the same rule, with Bonferroni's correction for their number; the slowest first
    slow_nodes: tuple[SlowNode, ...]
    # For each canary that took over 10% longer than usual, corrected for drift and
    # node: by which share it took longer
    disturbances: tuple[float, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences for the user; empty where the machine was steady."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        drift, hours = self.drift, self.hours
        if drift and self.is_drifting:
            is_slower = drift.value > 0
            became, change = (
                ("slowed down", "longer") if is_slower else ("sped up", "less time")
            )
            hourly = f", {_share(drift.value / hours)} per hour" if hours >= 1 else ""
            yield (
                f"The machine {became}: the same trial took {_share(drift.value)} "
                f"{change} at the end of the sweep than at its beginning "
                f"({_ends(drift)}){hourly}."
            )
        elif drift is None or drift.hi - drift.lo > _UNDECIDED:
            ends = f"{drift.lo:+.0%} to {drift.hi:+.0%}" if drift else ""
            known = f": step times changed by {ends} (80% interval)" if drift else ""
            yield (
                f"Too few control trials ({self.num_canaries}) to tell whether the "
                f"machine slowed down{known}. A smaller measure.canary_every runs more."
            )

        for node in self.slow_nodes[:_MAX_NODES_NAMED]:
            yield (
                f"Slow node: trials took {_share(node.excess.value)} longer on "
                f"{node.host} than on the {counted(self.num_hosts - 1, 'other node')} "
                f"({_ends(node.excess)})."
            )

        if more := self.slow_nodes[_MAX_NODES_NAMED:]:
            yield f"Further slow nodes: {', '.join(node.host for node in more)}."

        if found := self.disturbances:
            yield (
                f"Disturbed: {len(found)} of "
                f"{counted(self.num_canaries, 'control trial')} took over "
                f"{_share(DISTURBED)} longer than usual, the worst "
                f"{_share(max(found))} longer. Check whether others used the node."
            )


def _share(share: float) -> str:
    return f"{number(100 * abs(share))}%"


def _ends(change: Interval) -> str:
    least, most = sorted((abs(change.lo), abs(change.hi)))
    return f"80% interval: {_share(least)} to {_share(most)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The mean of some runs, the least and the largest, and how many they are."""

    mean: float
    lo: float
    hi: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WayRow:
    """One way to train, as it was measured on a number of devices."""

    parallelism: str
    settings: Mapping[str, Scalar]
    world_size: int
    global_batch_size: int
    # Median of the throughput trials; None where no step time is fit
    step_time_s: float | None
    # Median of the runs that reached their target
    time_to_target_s: float | None
    num_reached: int
    num_evaluated: int
    final_metric: Spread | None
    # See ``recommend.evidence.with_accuracy_gaps``; over the pairs
    accuracy_gap: Spread | None
    staleness_mean: float | None
    staleness_max: int | None
    averaging_period: int | None
    bubble_share: float | None
    num_servers: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RateRow:
    """The runs to a target with one learning-rate rule at one global batch."""

    # The rule (``lr_rule``), and whatever else tells curves of samples apart
    settings: Mapping[str, Scalar]
    global_batch_size: int
    learning_rate: float | None
    num_runs: int
    num_reached: int
    # Median, least and most of the runs that reached the target; None: none did
    samples_to_target: Interval | None
    # Median of the runs
    final_metric: float | None
    # Chance that one further run reaches the target, within so many samples (None:
    # however many)
    probability: float
    within_samples: int | None
    # The most samples that a run was given that missed the target; None: none missed
    missed_within_samples: int | None


def side_by_side(rows: Sequence[WayRow]) -> tuple[WayRow, ...]:
    """Return the rows of the one number of devices with most ways, several if they can.

    Of several such numbers it is the largest. A row of which nothing is known, such as
    of trials with more ranks than cores, is none.
    """
    by_size: dict[int, list[WayRow]] = {}
    for row in rows:
        if row.step_time_s or row.time_to_target_s or row.final_metric:
            by_size.setdefault(row.world_size, []).append(row)

    compared = {size: found for size, found in by_size.items() if len(found) > 1}
    # On one device all ways are the plain model.
    most = max(
        compared, key=lambda size: (size > 1, len(compared[size]), size), default=0
    )
    return tuple(compared.get(most, ()))


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeRun:
    """A trial that trained to its target, and the time that the laws predict."""

    world_size: float
    global_batch_size: float
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What was measured besides the answer."""

    # Empty where there is only one
    ways: tuple[WayRow, ...] = ()
    # Empty where no run had a target
    rates: tuple[RateRow, ...] = ()
    # None where no control trial tells
    steadiness: Steadiness | None = None
    # Empty where no such trial can be compared with the product of the laws
    whole_runs: tuple[WholeRun, ...] = ()
