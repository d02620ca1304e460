"""Rules of asynchronous training: what a worker sends, and what a server makes of it.

Workers train alone on their own parameters. After every window of so many optimiser
steps a worker exchanges one message with the servers. The rules differ in what is sent,
in how the servers' parameters change, and in what the worker goes on from.

The forms without a server's optimiser are those of Distributed Keras (Hermans 2017):
a worker's optimiser turns its gradients into a change of parameters, and changes are
what servers add.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scalelab.inputs.document import Scalar
from scalelab.kinds.strategies import ParameterServer


class Rule:
    """A rule of asynchronous training, on parameters as one vector or a part of it.

    What a rule does not say otherwise is that of :class:`Downpour`. Parameters and
    messages have the shape (num_parameters,).
    """

    def message(self, weights: torch.Tensor, fetched: torch.Tensor) -> torch.Tensor:
        """Return what a worker sends after a window: its change since it fetched."""
        return weights - fetched

    def serve(
        self, served: torch.Tensor, message: torch.Tensor, staleness: int
    ) -> torch.Tensor:
        """Change the served parameters in place and return the answer to the worker."""
        return served.add_(message).clone()

    def adopt(self, weights: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        """Return the parameters from which the worker goes on: those served."""
        return answer


class Downpour(Rule):
    """Add every worker's change; the worker goes on from the served parameters.

    Changes of all workers add up: the effective rate is that of one worker times the
    number of workers times the window.

    References
    ----------
    Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1.
    """


@dataclass(frozen=True, slots=True)
class Adag(Rule):
    """Add every worker's change per step: accumulated gradient normalisation.

    References
    ----------
    Hermans 2017, "On Scalable Deep Learning and Parallelizing Gradient Descent",
    chapter 3.
    """

    window: int

    def message(self, weights: torch.Tensor, fetched: torch.Tensor) -> torch.Tensor:
        """Return the worker's change since its last exchange, over the window."""
        return (weights - fetched) / self.window


class DynSgd(Rule):
    """Add every worker's change over its staleness plus one.

    References
    ----------
    Jiang et al. 2017, "Heterogeneity-aware Distributed Parameter Servers", section 4.
    """

    def serve(
        self, served: torch.Tensor, message: torch.Tensor, staleness: int
    ) -> torch.Tensor:
        """Add the change, the less of it the staler it is."""
        return served.add_(message, alpha=1 / (staleness + 1)).clone()


@dataclass(frozen=True, slots=True)
class Elastic(Rule):
    """Pull worker and servers towards each other; the worker keeps its parameters.

    References
    ----------
    Zhang, Choromanska, LeCun 2015, "Deep Learning with Elastic Averaging SGD",
    algorithm 1.
    """

    moving_rate: float

    def message(self, weights: torch.Tensor, fetched: torch.Tensor) -> torch.Tensor:
        """Return the worker's parameters."""
        return weights

    def serve(
        self, served: torch.Tensor, message: torch.Tensor, staleness: int
    ) -> torch.Tensor:
        """Move towards the worker; return the parameters as they were before."""
        before = served.clone()
        served.lerp_(message, self.moving_rate)
        return before

    def adopt(self, weights: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        """Move as far towards the servers as they moved."""
        return torch.lerp(weights, answer, self.moving_rate)


ELASTIC_PULL = 0.9
"""Moving rate times workers, beta in the paper, which uses this value (section 5.1)."""


def rule_of(options: Mapping[str, Scalar], num_workers: int) -> Rule:
    """Return the rule that the options of a trial name."""
    chosen = ParameterServer.Options.of(options)
    rules: dict[str, Rule] = {
        "downpour": Downpour(),
        "adag": Adag(chosen.communication_window),
        "dynsgd": DynSgd(),
        "elastic": Elastic(ELASTIC_PULL / num_workers),
    }
    return rules[chosen.rule]
