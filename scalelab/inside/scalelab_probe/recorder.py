"""What the probe sees: steps of optimizers, batches of loaders, and facts of ranks."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import deque
from functools import wraps
from typing import Any, Callable

from scalelab_probe import ranks
from scalelab_probe.entry import Entry
from scalelab_probe.stream import Stream

# Of so many optimizers, and loaders, each is told apart.
_MOST_APART = 8
# Beyond so many steps every tenth is written, with the draws of all ten.
_EACH_UNTIL, _STRIDE = 20_000, 10
_MOST_ERRORS = 3
_NO_GRADIENTS, _NO_SAMPLES = 1, 2


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Write down what goes wrong in the probe; the program never sees it.

    What goes wrong time and again is given up. A compiler that traces a step, as
    torch.compile does, leaves the probe out of its graphs.
    """
    name, untraced = method.__name__, method

    @wraps(method)
    def call(self: Recorder, *arguments: Any) -> None:
        nonlocal untraced
        if self.errors.count(name) >= _MOST_ERRORS:
            return

        dynamo = sys.modules.get("torch._dynamo")
        try:
            if untraced is method and dynamo is not None:
                untraced = dynamo.disable(method)
            untraced(self, *arguments)
        except Exception as error:
            self.errors.append(name)
            self.stream.fact(error=repr(error)[:300], where=name)
            self.stream.is_begun = True

    call._torchdynamo_disable = True
    return call


class Recorder:
    """Records the steps of this process, and of each process that is forked from it.

    No model, optimizer or batch is kept alive by it.
    """

    def __init__(self, folder: str) -> None:
        self.stream = Stream(folder)
        self._num_warm_up = int(os.environ.get("SCALELAB_PROBE_WARMUP", "0"))
        self._begin()
        os.register_at_fork(after_in_child=self._begin_in_child)
        atexit.register(self.stream.flush)

    def _begin(self) -> None:
        self.errors: list[str] = []  # where they were
        # The entry of the outermost optimizer whose step is under way.
        self._outer: list[int] | None = None
        # Index and steps of each, by its class and first parameter: those that are made
        # anew for the same parameters, as each step may do, are one.
        self._optimizers: dict[tuple[str, int], list[int]] = {}
        self._loaders: dict[tuple[Any, ...], int] = {}
        # When the last batch was there, or the last step over; then a forward pass runs
        self._ready_s: float | None = None
        self._forward_s = 0.0
        # Batches, samples and seconds waited since the last step, by loader and flags.
        self._draws: dict[tuple[int, int], list[Any]] = {}
        # Steps of all optimizers; those that a scaler of gradients skipped since then
        self._num_steps = self._num_skipped = 0

    def _begin_in_child(self) -> None:
        self.stream.begin()
        self._begin()

    @_guarded
    def hook(self) -> None:
        """See every step of every optimizer, and every batch of every data loader."""
        import torch
        from torch.optim import optimizer
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self._has_gradients = torch.is_grad_enabled
        self._entry = Entry()
        self._hook_loaders(_BaseDataLoaderIter)
        self._hook_scaler(getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler))
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)

        backward = torch.autograd.backward

        @wraps(backward)
        def timed_backward(*arguments: Any, **options: Any) -> Any:
            self._before_backward()
            return backward(*arguments, **options)

        torch.autograd.backward = timed_backward

    def _hook_scaler(self, scaler: Any) -> None:
        step, recorder = scaler.step, self

        @wraps(step)
        def counted_step(self: Any, *arguments: Any, **options: Any) -> Any:
            before = recorder._num_steps
            result = step(self, *arguments, **options)
            recorder._num_skipped += recorder._num_steps == before
            return result

        scaler.step = counted_step

    def _hook_loaders(self, iterator: Any) -> None:
        following, recorder = iterator.__next__, self
        next_index, reset = iterator._next_index, iterator._reset

        def __next__(self: Any) -> Any:
            began_s = time.monotonic()
            batch = following(self)
            recorder._drawn(self, batch, time.monotonic() - began_s)
            return batch

        def _next_index(self: Any) -> Any:
            index = next_index(self)
            size = len(index) if isinstance(index, (list, tuple)) else None
            self.__dict__.setdefault("_scalelab_sizes", deque()).append(size)
            return index

        def _reset(self: Any, *arguments: Any, **options: Any) -> Any:
            self.__dict__.pop("_scalelab_sizes", None)
            return reset(self, *arguments, **options)

        iterator.__next__ = __next__
        iterator._next_index, iterator._reset = _next_index, _reset

    @_guarded
    def _before_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if self._outer is not None:
            return
        key = type(optimizer).__name__, id(optimizer.param_groups[0]["params"][0])
        known = self._optimizers.setdefault(key, [len(self._optimizers), 0])
        self._outer = known
        index, number = known[0], known[1] + 1
        # before steps 1, 2, 4, 8, and so on
        if not number & (number - 1) and index < _MOST_APART:
            self._describe(optimizer, number, index)

    @_guarded
    def _after_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        now_s, known = time.monotonic(), self._outer
        if known is None:  # of an optimizer inside another one
            return

        self._outer, self._ready_s = None, now_s
        known[1] += 1
        self._num_steps += 1

        index, number = known
        self._note_entry(index, number)
        if index >= _MOST_APART or (number > _EACH_UNTIL and number % _STRIDE):
            return

        drawn = [(*source, *draws) for source, draws in self._draws.items()]
        self._draws.clear()
        self.stream.step(
            index, number, now_s, drawn, self._forward_s, self._num_skipped
        )
        self._forward_s, self._num_skipped = 0.0, 0

    @_guarded
    def _note_entry(self, index: int, number: int) -> None:
        if seen := self._entry.after_step(self._num_steps):
            self.stream.fact(optimizer=index, at_step=number, **seen)

    @_guarded
    def _before_backward(self) -> None:
        # one of several in a row, as for several losses, has no forward pass before it
        if self._ready_s is not None:
            self._forward_s += time.monotonic() - self._ready_s
            self._ready_s = None

    @_guarded
    def _describe(self, optimizer: Any, number: int, index: int) -> None:
        may_wait = number <= self._num_warm_up and not ranks.captures()
        code = {"code": ranks.of_code()} if number == 1 else {}
        self.stream.fact(
            before_step=number,
            optimizer=index,
            **code,
            **ranks.of_process(),
            **ranks.of_optimizer(optimizer, may_wait=may_wait),
        )

    @_guarded
    def _drawn(self, iterator: Any, batch: Any, waited_s: float) -> None:
        loader = self._loader_of(iterator, batch)
        sizes = iterator.__dict__.get("_scalelab_sizes")
        size = sizes.popleft() if sizes else None
        flags = 0 if self._has_gradients() else _NO_GRADIENTS
        flags |= _NO_SAMPLES if size is None else 0
        draws = self._draws.setdefault((loader, flags), [0, 0, 0.0])
        draws[0] += 1
        draws[1] += size or 0
        draws[2] += waited_s
        self._ready_s = time.monotonic()
        if not flags & _NO_GRADIENTS:
            self._entry.drawn(loader, size, batch)

    def _loader_of(self, iterator: Any, batch: Any) -> int:
        """Return the index of a loader, or of those made anew for the same data."""
        key = iterator.__dict__.get("_scalelab_loader")
        if key is None:
            data = iterator._dataset
            size = getattr(iterator._index_sampler, "batch_size", None)
            key = type(data).__name__, _length(data), size
            iterator._scalelab_loader = key

        if key not in self._loaders and len(self._loaders) < _MOST_APART:
            index = self._loaders[key] = len(self._loaders)
            sampler = getattr(iterator._index_sampler, "sampler", None)
            self.stream.fact(
                loader=index,
                data=key,
                num_indices=_length(sampler),
                first_batch=ranks.of_batch(batch),
            )

        return self._loaders.get(key, _MOST_APART)


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except Exception:  # it has none, or is endless
        return None
