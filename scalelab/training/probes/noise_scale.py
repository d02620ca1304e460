"""The gradient noise scale: the batch up to which larger batches save steps."""

from dataclasses import dataclass

DECAY = 0.95


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
    noisy from one step.

    Parameters
    ----------
    small_batch, big_batch
        Samples behind the two gradients; equal where there is only one, and then there
        is no noise scale.
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
