"""What a parameter server keeps: parameters, their version, and how fast workers go."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from scalelab.training.servers.rules import Rule


@dataclass(slots=True)
class Staleness:
    """The staleness of the messages served so far."""

    num_messages: int = 0
    total: int = 0
    maximum: int = 0

    @property
    def mean(self) -> float:
        """Mean over all messages; nan before the first."""
        return self.total / self.num_messages if self.num_messages else float("nan")

    def add(self, staleness: int) -> None:
        """Count one message."""
        self.num_messages += 1
        self.total += staleness
        self.maximum = max(self.maximum, staleness)


class ServedParameters:
    """Parameters that workers change, one message after the other.

    They are one vector, shape (num_parameters,), as are messages and answers; the
    version is the number of messages served.
    """

    def __init__(self, parameters: torch.Tensor, rule: Rule, version: int = 0) -> None:
        self.parameters = parameters.clone()
        self.version = version
        self.staleness = Staleness()
        self._rule = rule

    def exchange(
        self, message: torch.Tensor, fetched_version: int
    ) -> tuple[torch.Tensor, int]:
        """Serve a worker's message; return the answer and its version."""
        staleness = self.version - fetched_version
        self.staleness.add(staleness)
        answer = self._rule.serve(self.parameters, message, staleness)
        self.version += 1
        return answer, self.version


class Pace:
    """The steps that each worker has begun, and who has to wait for the slowest.

    A worker may be ahead of the slowest one by ``bound`` steps; None: by any.

    References
    ----------
    Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server", section 3.
    """

    def __init__(self, num_workers: int, bound: int | None) -> None:
        self._steps = [0] * num_workers
        self._bound = bound

    def advance(self, worker: int, num_steps: int) -> None:
        """Count the steps that a worker has taken."""
        self._steps[worker] += num_steps

    def may_go_on(self, worker: int) -> bool:
        """Tell whether the worker is not further ahead than the bound."""
        if self._bound is None:
            return True
        return self._steps[worker] - min(self._steps) <= self._bound


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return a copy of all values in one vector on the CPU, as fp32."""
    parts = [tensor.detach().reshape(-1).to("cpu", torch.float32) for tensor in tensors]
    return torch.cat(parts)


def fill(tensors: Iterable[torch.Tensor], values: torch.Tensor) -> None:
    """Give the tensors the values of a vector that :func:`flat` has made of such."""
    targets = [tensor.detach() for tensor in tensors]
    parts = torch.split(values, [tensor.numel() for tensor in targets])
    for tensor, part in zip(targets, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
