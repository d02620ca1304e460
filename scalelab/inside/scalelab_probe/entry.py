"""What enters the model: the sizes of the tensors that its outermost modules are given.

A program may draw a batch and train on a part of it only. So in the first eight steps,
and in steps 16, 32 and so on, the calls of the outermost modules are looked at. After
the first batch a hook of all modules finds them: they are part of no other module that
was called. Later they have hooks of their own, in the steps that are looked at. A hook
that stayed would be saved and copied with the model.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, Iterator

_FIRST_STEPS = 8
_MOST_CALLS, _MOST_ROOTS, _MOST_WRITTEN = 2048, 8, 64
_MOST_DEPTH, _MOST_MEMBERS = 4, 32


class Entry:
    """Sees the calls of the outermost modules, in the steps that are looked at."""

    def __init__(self) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook

        calls = self._calls = deque(maxlen=_MOST_CALLS)

        def called(module: Any, arguments: Any, options: Any = None) -> None:
            # Left out of a graph that is being compiled. A ScriptModule takes no hook.
            if (
                torch.compiler.is_compiling()
                or not torch.is_grad_enabled()
                or isinstance(module, torch.jit.ScriptModule)
            ):
                return
            with suppress(Exception):  # not every tensor has sizes
                given = [*arguments, *(options or {}).values()]
                calls.append((weakref.ref(module), [*chain(*map(_sizes, given))]))

        self._hook_all = lambda: register_module_forward_pre_hook(called)
        self._hook = _Hook(called)
        # None before a first step is over. Old versions of PyTorch do not tell what is
        # being compiled; there no module is looked at.
        self._roots: list[Any] | None = (
            None if hasattr(getattr(torch, "compiler", None), "is_compiling") else []
        )
        self._handles: list[Any] = []
        self._drawn: list[tuple[int, int, int]] = []

    def drawn(self, loader: int, size: int | None, batch: Any) -> None:
        """Take in a batch of so many samples; None: they are not known."""
        if self._roots is None and not self._handles:
            # torch.compile would warn of it
            warnings.filterwarnings("ignore", ".*when there are global hooks on")
            self._handles = [self._hook_all()]
        if self._handles and size and len(self._drawn) < _MOST_WRITTEN:
            elements = max((sum(sizes[2:]) for sizes in _sizes(batch)), default=0)
            self._drawn.append((loader, size, elements))

    def after_step(self, number: int) -> dict[str, Any]:
        """Return what has entered in a step, if it was looked at; begin the next."""
        seen: dict[str, Any] = {}
        if self._handles:
            seen = {"drawn": self._drawn, "entered": self._entered()}
        for handle in self._handles:
            handle.remove()

        self._handles, self._drawn = [], []
        self._calls.clear()
        if number < _FIRST_STEPS or not number & (number + 1):
            self._handles = [
                root.register_forward_pre_hook(self._hook, with_kwargs=True)
                for root in [reference() for reference in self._roots or ()]
                if getattr(root, "_compiled_call_impl", ...) is None
            ]

        return seen

    def _entered(self) -> list[tuple[int, list[list[int]]]]:
        """Return the calls of the outermost modules, each by its place among them."""
        if self._roots is None:
            called = {ref: ref() for ref, _ in self._calls if ref() is not None}
            parts = chain(*([*module.modules()][1:] for module in called.values()))
            inner = {id(part) for part in parts}
            outer = [ref for ref, module in called.items() if id(module) not in inner]
            self._roots = outer[:_MOST_ROOTS]

        places = {ref: place for place, ref in enumerate(self._roots)}
        calls = [(places[ref], sizes) for ref, sizes in self._calls if ref in places]
        return calls[:_MOST_WRITTEN]


class _Hook(partial):  # type: ignore[type-arg]
    """A hook that no copy of a model has, nor a model that is saved as a whole."""

    def __reduce__(self) -> Any:
        # It is of the standard library, takes three arguments, and does nothing.
        from xml.sax.handler import ContentHandler

        return getattr, (ContentHandler, "startElement")


def _sizes(value: Any, depth: int = 0) -> Iterator[list[int]]:
    """Yield the first two sizes of each tensor and the number of its elements.

    Of a sequence, or of named values, it is the length alone.
    """
    import torch

    members = [*value.values()] if isinstance(value, Mapping) else value
    if isinstance(value, torch.Tensor):
        yield [*(*value.shape, 0, 0)[:2], value.numel()]
    elif isinstance(members, (list, tuple)) and depth < _MOST_DEPTH:
        yield [len(members)]
        for member in members[:_MOST_MEMBERS]:
            yield from _sizes(member, depth + 1)
