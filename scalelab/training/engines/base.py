"""What computes a step: the training of a model, or an emulation of it."""

from __future__ import annotations

from typing import Any, Protocol


class Engine(Protocol):
    """Computes steps and evaluations of one rank; knows nothing of when to stop."""

    def begin(self, step: int) -> None:
        """Get ready for a series of steps; all ranks are here, no clock runs."""
        ...

    def step(self, step: int) -> None:
        """Take one optimiser step, marking its phases on the clock."""
        ...

    def drain_losses(self) -> list[float]:
        """Return this rank's training losses since the last call, one per step.

        Empty for an engine without losses.
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

        All ranks take part.
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
