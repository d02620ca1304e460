"""The protocol of engines, which compute the steps of one rank.

The row of a strategy names an engine by its path, and a workload may name one of its
own. Either is called with the workload, the trial, the rank's context, its step clock
and ``loader_workers``, on every rank alike. ``training.loop`` decides when to step, to
evaluate, to save and to stop. It lets the ranks take a series of steps, about a second
long, and only there do they meet. Inside a series an engine is free: its ranks may
exchange at every step, now and then, or not with each other at all.

Ranks of a :class:`FreeEngine` never keep step: ``training.loop`` lets them take
steps one by one until the next evaluation or checkpoint, where they meet.
"""

from typing import Any, Protocol, runtime_checkable


class Engine(Protocol):
    """Computes steps and evaluations of one rank; the loop decides when to stop."""

    def begin(self, step: int, num_steps: int) -> None:
        """Prepare a series of steps; all ranks call it, and no clock runs."""

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""

    def drain_losses(self) -> list[float]:
        """Return this rank's training losses since the last call, one per step.

        Empty for a rank without losses. Those of rank 0 are recorded, and end the trial
        where they are not finite.
        """

    def evaluate(self, step: int) -> dict[str, Any]:
        """Return held-out metrics on rank 0, {} elsewhere; all ranks take part.

        Metrics are numbers. Under ``confusion_matrix`` may be a tensor, see
        :func:`~scalelab.training.workloads.base.confusion_matrix`.
        """

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return the state for a checkpoint: the shared part and this rank's own.

        All ranks take part. What they share is read on rank 0, so state that is spread
        over them is either gathered there, or is each rank's own.
        """

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Restore a state, to continue after a step."""

    def description(self) -> dict[str, Any]:
        """Return the columns that are known without measuring."""

    def validity(self) -> tuple[str, ...]:
        """Return why this rank's times are unfit for a law; usually nothing."""

    def gradient_noise_scale(self) -> float | None:
        """Return the gradient noise scale on rank 0; all ranks take part."""

    def peak_memory_bytes(self) -> int | None:
        """Return the peak memory of this rank's device; None where not known."""

    def device_memory_bytes(self) -> int | None:
        """Return the memory that the rank could use on its device; None: not known."""


@runtime_checkable
class FreeEngine(Engine, Protocol):
    """Takes steps as they are granted; no rank waits for another inside a series.

    Attributes
    ----------
    num_granted
        Steps of the trial that were granted; after a series alike on all ranks.
    """

    num_granted: int

    def take(self) -> int | None:
        """Take one optimiser step, marking its phases on the clock."""

    def halt(self, origin: int, cycle: int) -> None:
        """Let the series end early; one rank may call it, and nobody waits."""

    def step_times_s(self, *, is_over: bool = False) -> list[float]:
        """Return the seconds of the steps since the last call, on rank 0."""
