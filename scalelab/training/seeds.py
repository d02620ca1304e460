"""Random generators of a rank: seeding, saving, restoring."""

import random
from typing import Any

import numpy as np
import torch

MODEL_STREAM = 0
"""Stream of the model's initialisation: the same on every rank."""


def rank_stream(rank: int) -> int:
    """Return the number of the stream of a rank's own randomness, such as dropout."""
    return rank + 1


def seed_everything(seed: int, stream: int) -> None:
    """Seed the generators of Python, NumPy and torch, CUDA included."""
    words = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(3)
    python_seed, numpy_seed, torch_seed = (int(word) for word in words)
    random.seed(python_seed)
    np.random.seed(numpy_seed)
    # torch.manual_seed would format a traceback for every kind of device not in use.
    torch.default_generator.manual_seed(torch_seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(torch_seed)


def parameter_generator(seed: int, position: int) -> torch.Generator:
    """Return a generator for what is drawn for one parameter, alike on all ranks."""
    words = np.random.SeedSequence(seed, spawn_key=(MODEL_STREAM, position))
    return torch.Generator().manual_seed(int(words.generate_state(1)[0]))


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every generator, as plain values and tensors."""
    of_numpy: Any = np.random.get_state(legacy=True)
    kind, keys, *rest = of_numpy

    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.tensor(keys.astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)

    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore every generator to a state of :func:`random_state`."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
