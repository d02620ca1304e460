"""The gradient noise scale: the batch up to which larger batches save steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from scalelab.training.order import Share

DECAY = 0.95
EVERY_STEPS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientMoments:
    """Unbiased estimates from gradients at two batch sizes."""

    square_norm: float
    trace_covariance: float


def gradient_moments(
    *,
    small_batch: int,
    big_batch: int,
    small_square_norm: float,
    big_square_norm: float,
) -> GradientMoments:
    """Estimate the true gradient and its noise from two batch sizes.

    ``E|G_B|^2 = |G|^2 + tr(Sigma) / B``, solved for both unknowns.

    References
    ----------
    McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", appendix A.1.

    Examples
    --------
    |G|^2 = 4 and tr(Sigma) = 60 give 4 + 60/10 = 10 and 4 + 60/30 = 6:

    >>> gradient_moments(small_batch=10, big_batch=30,
    ...                  small_square_norm=10.0, big_square_norm=6.0)
    GradientMoments(square_norm=4.0, trace_covariance=60.0)
    """
    square_norm = (big_batch * big_square_norm - small_batch * small_square_norm) / (
        big_batch - small_batch
    )
    trace = (
        (small_square_norm - big_square_norm)
        * (small_batch * big_batch)
        / (big_batch - small_batch)
    )
    return GradientMoments(square_norm=square_norm, trace_covariance=trace)


class NoiseScaleAverage:
    """Averages squared norms exponentially and gives the simple noise scale.

    Both moments are linear in the two squared norms, so averaging these first is the
    same as averaging the moments, as the authors advise: their ratio is biased, and
    noisy from one step. Where there is only one gradient, both batches are equal, and
    there is no noise scale.
    """

    def __init__(
        self, *, small_batch: int, big_batch: int, decay: float = DECAY
    ) -> None:
        self.small_batch = small_batch
        self.big_batch = big_batch
        self._decay = decay
        self._weight = 0.0
        self._small = 0.0
        self._big = 0.0

    def observe(self, small_square_norm: float, big_square_norm: float) -> None:
        """Take in the squared norms of one step."""
        rest = 1.0 - self._decay
        self._weight = self._decay * self._weight + rest
        self._small = self._decay * self._small + rest * small_square_norm
        self._big = self._decay * self._big + rest * big_square_norm

    @property
    def state(self) -> tuple[float, float, float]:
        """The averages, for a checkpoint."""
        return self._weight, self._small, self._big

    @state.setter
    def state(self, state: tuple[float, float, float]) -> None:
        self._weight, self._small, self._big = state

    @property
    def value(self) -> float | None:
        """``tr(Sigma) / |G|^2`` in samples; None where the data do not give one.

        None before the first observation, with a single gradient, and while the
        estimate of ``|G|^2`` is not positive or that of the trace negative.
        """
        if not self._weight or self.big_batch == self.small_batch:
            return None
        moments = gradient_moments(
            small_batch=self.small_batch,
            big_batch=self.big_batch,
            small_square_norm=self._small / self._weight,
            big_square_norm=self._big / self._weight,
        )
        if moments.square_norm <= 0 or moments.trace_covariance < 0:
            return None

        return moments.trace_covariance / moments.square_norm


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
