"""A model that a strategy has spread over ranks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Observers:
    """Observers of gradients, which a spread model reports to."""

    # Called when the last of the rank's own gradients exists and only the exchange is
    # left; at most once per backward pass.
    on_own_gradients_ready: Callable[[], None]
    # Called with each piece of the rank's own gradients before the exchange; None: the
    # exchange takes no detour over Python.
    on_own_gradients: Callable[[torch.Tensor], None] | None = None


class SpreadModel:
    """A model spread over ranks; this one's gradients stay on the rank.

    In training ``model`` is called, whose parameters are those of the plain module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def watch(self, loss: torch.Tensor) -> None:
        """Report to observers the backward pass that begins at this loss, if any do."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients accumulate on the rank, without an exchange, in this block."""
        return nullcontext()


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
