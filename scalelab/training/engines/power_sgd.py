"""PowerSGD: gradients are exchanged as products of two thin matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from scalelab.training.seeds import parameter_generator


class PowerSgd:
    """Exchanges gradients as products of two thin matrices, with error feedback.

    The gradient of a parameter of two or more dimensions is viewed as a matrix of n
    rows, its first dimension, and m columns. With ``M = G + E`` of each rank, all ranks
    average ``P = M Q``, make its columns orthonormal, average ``Q = M^T P``, and take
    ``P Q^T`` as the average gradient. ``E = M - P Q^T`` is what a rank adds to its next
    gradient, and Q is where its next product begins. Gradients for which rank x (n + m)
    numbers are no fewer than n x m, and vectors, are averaged as they are.

    All of it is linear in the mean over ranks: what is learned does not depend on how
    many ranks compute a global batch, one included.

    What is kept belongs to a parameter and not to a bucket: torch fills other buckets
    in the first pass of a process than in the following ones, and a trial that goes on
    in a new process must compute what it would have computed in the old one.

    Numbers of 16 bits are computed with and sent in single precision. A gradient that
    is not finite on some rank is not finite on any rank, and changes nothing that is
    kept.

    ``rank`` is the number of columns of P and Q, not that of a process.

    References
    ----------
    Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression
    for Distributed Optimization", algorithms 1 and 2.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, rank: int, seed: int
    ) -> None:
        self._parameters = list(parameters)
        self._positions: dict[torch.Tensor, int] = {
            parameter: n for n, parameter in enumerate(self._parameters)
        }
        self._rank = rank
        self._seed = seed
        self._kept: dict[int, _Kept] = {}
        self._begun: list[_Exchange] = []
        self._is_first_pass = True

    def exchange(
        self, group: dist.ProcessGroup, bucket: GradBucket
    ) -> Future[torch.Tensor]:
        """Begin to exchange a bucket of gradients; the future will hold the averages.

        The second message of every bucket waits for the end of the backward pass: only
        there is the order in which ranks send the same for all of them.
        """
        if not self._begun and not self._is_first_pass:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        gradients = bucket.gradients()
        kept = [
            self._kept_of(parameter, gradient)
            for parameter, gradient in zip(bucket.parameters(), gradients, strict=True)
        ]
        begun = _Exchange(bucket.buffer(), gradients, kept, group)
        self._begun.append(begun)

        # In the first pass over a static graph torch waits for the averages before it
        # calls anything that was queued.
        if self._is_first_pass and bucket.is_last():
            self._is_first_pass = False
            self._finish()

        return begun.future

    def rescale(self, factor: float) -> None:
        """Multiply the errors, after a change of what gradients are multiplied by."""
        if factor != 1:
            for kept in self._kept.values():
                kept.error *= factor

    def forget(self) -> None:
        """Begin anew, as if nothing had been exchanged."""
        self._kept.clear()

    def state(self) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        """Return Q, the same on all ranks, and this rank's errors.

        Each is a matrix per parameter, by the parameter's position.
        """
        return (
            {position: kept.right for position, kept in self._kept.items()},
            {position: kept.error for position, kept in self._kept.items()},
        )

    def restore(
        self, rights: Mapping[int, torch.Tensor], errors: Mapping[int, torch.Tensor]
    ) -> None:
        """Restore what :meth:`state` has returned."""
        self._kept = {
            position: _Kept(
                error=errors[position].to(self._parameters[position].device),
                right=right.to(self._parameters[position].device),
            )
            for position, right in rights.items()
        }

    def _finish(self) -> None:
        begun, self._begun = self._begun, []
        for exchange in begun:
            exchange.send_rights()
        for exchange in begun:
            exchange.finish()

    def _kept_of(self, parameter: torch.Tensor, gradient: torch.Tensor) -> _Kept | None:
        if not is_compressed(gradient.shape, self._rank):
            return None
        position = self._positions[parameter]
        if position not in self._kept:
            self._kept[position] = self._first(position, gradient)
        return self._kept[position]

    def _first(self, position: int, gradient: torch.Tensor) -> _Kept:
        error = torch.zeros_like(_matrix(gradient))
        generator = parameter_generator(self._seed, position)
        right = torch.randn(error.size(1), self._rank, generator=generator)
        return _Kept(error=error, right=right.to(error))


def is_compressed(shape: Sequence[int], rank: int) -> bool:
    """Tell whether a product of so many columns has fewer numbers than a gradient.

    Examples
    --------
    Two times 2 x (256 + 64) numbers stand for 256 x 64:

    >>> is_compressed((256, 64), 2), is_compressed((2, 3), 2), is_compressed((256,), 1)
    (True, False, False)
    """
    if len(shape) < 2:
        return False
    rows, numel = shape[0], torch.Size(shape).numel()
    return rank * (rows * rows + numel) < rows * numel


@dataclass(slots=True)
class _Kept:
    """What is kept of a parameter from one step to the next."""

    error: torch.Tensor
    right: torch.Tensor  # Q of the last product, shape (m, rank), alike on all ranks


class _Exchange:
    """The exchange of one bucket: two messages, of which the first is sent at once."""

    def __init__(
        self,
        buffer: torch.Tensor,
        gradients: list[torch.Tensor],
        kept: list[_Kept | None],
        group: dist.ProcessGroup,
    ) -> None:
        is_on_cpu = buffer.device.type == "cpu"
        self.future: Future[torch.Tensor] = Future(
            devices=None if is_on_cpu else [buffer.device]
        )
        self._buffer = buffer
        self._group = group
        self._matrices = [
            _CompressedGradient(gradient, kept_state)
            for gradient, kept_state in zip(gradients, kept, strict=True)
            if kept_state is not None
        ]
        self._whole = [
            gradient
            for gradient, kept_state in zip(gradients, kept, strict=True)
            if kept_state is None
        ]
        lefts = [matrix.own_left() for matrix in self._matrices]
        self._first = _Mean([*map(_wide, self._whole), *lefts], group)

    def send_rights(self) -> None:
        means = self._first.wait()
        for gradient, mean in zip(self._whole, means, strict=False):
            gradient.copy_(mean)
        lefts = means[len(self._whole) :]
        rights = [
            matrix.own_right(left)
            for matrix, left in zip(self._matrices, lefts, strict=True)
        ]
        self._second = _Mean(rights, self._group)

    def finish(self) -> None:
        for matrix, right in zip(self._matrices, self._second.wait(), strict=True):
            matrix.decompress(right)
        self.future.set_result(self._buffer)


class _CompressedGradient:
    def __init__(self, gradient: torch.Tensor, kept: _Kept) -> None:
        self._gradient = gradient
        self._kept = kept
        self._matrix = _matrix(gradient) + kept.error
        self._left = torch.empty(0)

    def own_left(self) -> torch.Tensor:
        """Return P of this rank, shape (n, rank)."""
        return self._matrix @ self._kept.right

    def own_right(self, left: torch.Tensor) -> torch.Tensor:
        """Return Q of this rank, shape (m, rank), for the mean P of all ranks."""
        # Not every library returns from a decomposition of numbers that are not finite.
        finite = torch.nan_to_num(left, nan=0.0, posinf=0.0, neginf=0.0)
        self._left = torch.linalg.qr(finite).Q
        return self._matrix.T @ self._left

    def decompress(self, right: torch.Tensor) -> None:
        """Write the average gradient for the mean Q, and keep what it lacks."""
        product = self._left @ right.T
        self._gradient.copy_(product.view(self._gradient.shape))
        is_finite = torch.isfinite(right).all()
        kept, error = self._kept, self._matrix - _matrix(self._gradient)
        kept.error = torch.where(is_finite, error, kept.error)
        kept.right = torch.where(is_finite, right, kept.right)


class _Mean:
    """The mean of tensors over all ranks, in one message that is on its way."""

    def __init__(self, tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._message = flat.div_(dist.get_world_size(group))
        self._work = dist.all_reduce(self._message, group=group, async_op=True)

    def wait(self) -> list[torch.Tensor]:
        """Return the means, as tensors of their own.

        Where a tensor lay in the message must not matter for the last digits of what is
        computed from it, and alignment would.
        """
        if not self._shapes:
            return []
        assert self._work is not None  # it is for ranks outside of the group
        self._work.wait()
        parts = torch.split(self._message, [shape.numel() for shape in self._shapes])
        return [
            part.clone().view(shape)
            for part, shape in zip(parts, self._shapes, strict=True)
        ]


def _matrix(gradient: torch.Tensor) -> torch.Tensor:
    return _wide(gradient).reshape(gradient.size(0), -1)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
