"""What an engine is: it computes the steps of one rank.

The row of a strategy names an engine by its path, and a workload may name one of its
own. Either is called with the workload, the trial, the rank's context, its step clock
and ``loader_workers``, on every rank alike. ``training.loop`` decides when to step, to
evaluate, to save and to stop. It lets the ranks take a series of steps, about a second
long, and only there do they meet. Inside a series an engine is free: its ranks may
exchange at every step, now and then, or not with each other at all.
"""

from __future__ import annotations

from typing import Any, Protocol


class Engine(Protocol):
    """Computes steps and evaluations of one rank; knows nothing of when to stop."""

    def begin(self, step: int, num_steps: int) -> None:
        """Get ready for a series of steps; all ranks are here, no clock runs.

        Parameters
        ----------
        step
            Steps done, the same on all ranks.
        num_steps
            Length of the series, the same on all ranks.
        """
        ...

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""
        ...

    def drain_losses(self) -> list[float]:
        """Return this rank's training losses since the last call, one per step.

        Empty for a rank without losses. Those of rank 0 are recorded, and end the trial
        where they are not finite.
        """
        ...

    def evaluate(self, step: int) -> dict[str, float]:
        """Return held-out metrics on rank 0, {} elsewhere; all ranks take part.

        Parameters
        ----------
        step
            Optimiser steps done.
        """
        ...

    def state(self) -> tuple[dict[str, Any], Any]:
        """Return what all ranks share and what is this rank's own, for a checkpoint.

        All ranks take part. What they share is read on rank 0, so state that is spread
        over them is either gathered there, or is each rank's own.
        """
        ...

    def restore(self, step: int, state: dict[str, Any], rank_state: Any) -> None:
        """Go on from a state, at a step."""
        ...

    def description(self) -> dict[str, Any]:
        """Return the columns that are known without measuring."""
        ...

    def validity(self) -> tuple[str, ...]:
        """Return what makes this rank's times unfit for a fit; empty: nothing."""
        ...

    def gradient_noise_scale(self) -> float | None:
        """Return the gradient noise scale on rank 0; all ranks take part."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Return the most memory this rank's device held, None where not known."""
        ...

    def device_memory_bytes(self) -> int | None:
        """Return the most memory it could have held, None where not known."""
        ...
