"""Compilation of the model by ``torch.compile``, before the first step."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from scalelab.errors import LaunchError
from scalelab.training.context import RankContext
from scalelab.training.seeds import random_state, restore_random_state

REPORT_INTERVAL_S = 5.0
LONGEST_COMPILATION_S = 1800.0
"""Beyond it a rank is no longer reported alive, and counts as stalled if it hangs."""


def compiled(model: nn.Module) -> nn.Module:
    """Return a module that trains as ``torch.compile`` translates it.

    It has the parameters of the module that is given, which evaluates as it is.
    """
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # a rank starts no processes that might outlive it
    translated: nn.Module = torch.compile(model)  # type: ignore[assignment]
    return translated


@contextmanager
def compiling(model: nn.Module, context: RankContext) -> Iterator[None]:
    """Run a first pass in which the model is compiled, and undo what it changes.

    The supervisor hears that the rank is alive, though the compiler takes minutes.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        with unchanged(model, context.device), _reporting(context):
            yield
    except TorchDynamoException as error:
        root = getattr(error, "inner_exception", error)
        line = next(iter(str(root).strip().splitlines()), type(root).__name__)
        raise LaunchError(
            f"compile=True, but torch.compile fails here: {line.rstrip('. ')}. It "
            "needs a C++ compiler such as g++ on every node, on GPUs also Triton. "
            "Install what is missing, or leave compile out."
        ) from error


@contextmanager
def unchanged(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Run a first pass and undo what it changes.

    That is the state of random generators and of buffers such as batch-norm statistics.
    """
    random = random_state(device)
    with kept(model.buffers()):
        yield
    restore_random_state(random, device)


@contextmanager
def kept(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give the tensors back, after the block, the values that they have before it."""
    copies = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
    yield
    for tensor, value in copies:
        tensor.copy_(value)


@contextmanager
def _reporting(context: RankContext) -> Iterator[None]:
    ended = threading.Event()

    def report() -> None:
        for _ in range(round(LONGEST_COMPILATION_S / REPORT_INTERVAL_S)):
            if ended.wait(REPORT_INTERVAL_S):
                return
            context.progress(0)

    context.progress(0)
    thread = threading.Thread(target=report)
    thread.start()

    try:
        yield
    finally:
        ended.set()
        thread.join()
