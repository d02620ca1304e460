"""Measures the squared gradient norms for the gradient noise scale."""

import math
from collections.abc import Callable

import torch
from torch import nn

from scalelab.training.order import Share
from scalelab.training.probes.noise_scale import NoiseScaleAverage

EVERY_STEPS = 10


class NoiseProbe:
    """Measures every tenth step of a trial on the device, without waiting for it.

    The small batch is one local batch. Without accumulation its gradient is the one
    that goes into the exchange; with accumulation it is what a forward-backward pass
    adds to the gradients on the rank. The big batch is the global one. With a single
    gradient per step there is nothing to compare.
    """

    def __init__(self, share: Share, *, enabled: bool) -> None:
        small, big = share.local_batch_size, share.global_batch_size
        self._enabled = enabled and small < big
        self._accumulation = share.gradient_accumulation_steps
        self._average = NoiseScaleAverage(small_batch=small, big_batch=big)
        self.is_watching = False
        self._pieces: list[torch.Tensor] = []
        self._num_gradients = 0
        self._before: list[torch.Tensor] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def takes_buckets(self) -> bool:
        """Measured steps need calls of :meth:`observe_bucket`."""
        return self._enabled and self._accumulation == 1

    def begin_step(self, step: int) -> None:
        """Begin a step; every tenth one is measured."""
        self.is_watching = self._enabled and step % EVERY_STEPS == 0
        self._pieces, self._before, self._num_gradients = [], [], 0

    def observe_bucket(self, own_gradients: torch.Tensor) -> None:
        """Take in a piece of the rank's own gradient, on its way into the exchange."""
        if self.is_watching and self._accumulation == 1:
            self._pieces.append(own_gradients.float().square().sum())
            self._num_gradients = 1

    def observe_micro_step(self, model: nn.Module) -> None:
        """Take in the gradient after a forward-backward pass that exchanged nothing."""
        if not self.is_watching or self._accumulation == 1:
            return
        gradients = _gradients(model)
        before = self._before or [torch.zeros_like(g) for g in gradients]
        added = torch._foreach_sub(gradients, before)
        # Losses are divided by the accumulation steps, and so are their gradients.
        self._pieces.append(_square_norm(added) * self._accumulation**2)
        self._num_gradients += 1
        self._before = [gradient.clone() for gradient in gradients]

    def end_step(self, model: nn.Module, loss_scale: float) -> None:
        """Take in the averaged gradient, before the optimiser uses it."""
        if self.is_watching:
            small = torch.stack(self._pieces).sum() / self._num_gradients
            big = _square_norm(_gradients(model))
            self._pairs.append((small / loss_scale**2, big / loss_scale**2))

    def average(self) -> NoiseScaleAverage:
        """Return the averages over the measured steps; waits for the device."""
        pairs, self._pairs = self._pairs, []
        for small, big in pairs:
            norms = float(small), float(big)
            # A loss scale that was too large leaves infinite gradients, and no update.
            if all(map(math.isfinite, norms)):
                self._average.observe(*norms)
        return self._average

    def value(self, mean: Callable[[float], float]) -> float | None:
        """Return the noise scale; ``mean`` is over the small batches of all ranks."""
        weight, small, big = self.average().state
        self._average.state = weight, mean(small), big
        return self._average.value


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def _square_norm(
    gradients: list[torch.Tensor] | tuple[torch.Tensor, ...],
) -> torch.Tensor:
    norms = torch._foreach_norm(gradients)
    return torch.stack([norm.float() for norm in norms]).square().sum()
