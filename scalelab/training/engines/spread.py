"""The protocol of a model that a strategy has spread over ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Observers:
    """Observers of gradients, which a spread model reports to.

    Parameters
    ----------
    on_own_gradients_ready
        Called when the last of the rank's own gradients exists and only the exchange
        is left; at most once per backward pass.
    on_own_gradients
        Called with each piece of the rank's own gradients before the exchange; None:
        the exchange takes no detour over Python.
    """

    on_own_gradients_ready: Callable[[], None]
    on_own_gradients: Callable[[torch.Tensor], None] | None = None


class SpreadModel(Protocol):
    """A model spread over ranks, as the training engine uses it.

    Attributes
    ----------
    model
        The module to call in training; its parameters are those of the plain module.
    """

    model: nn.Module

    def watch(self, loss: torch.Tensor) -> None:
        """Report to the observers the backward pass that begins at this loss."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients accumulate on the rank, without an exchange, in this block."""


def call_before_exchange_ends(
    loss: torch.Tensor, on_own_gradients_ready: Callable[[], None]
) -> None:
    """Call a function once the backward pass of this loss has computed all gradients.

    It is called before what the strategy queues in the pass, which waits for the
    exchange: such callbacks run in turn, and this one is queued as the pass begins.
    """

    def queue(gradient: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(on_own_gradients_ready)

    loss.register_hook(queue)  # type: ignore[no-untyped-call]
