"""Splitting of a model into the stages of a pipeline."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from torch import nn

from scalelab.errors import SpecError


def split(
    layers: Iterable[nn.Module], num_stages: int, costs: Sequence[int] | None = None
) -> list[nn.Module]:
    """Return consecutive layers as stages, the costliest stage as cheap as can be.

    Examples
    --------
    >>> layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2)]
    >>> [len(stage) for stage in split(layers, 2)]
    [2, 2]
    """
    items = list(layers)
    if costs is None:
        costs = [sum(p.numel() for p in layer.parameters()) for layer in items]

    starts = [index for index, cost in enumerate(costs) if cost]
    if len(starts) < num_stages:
        raise SpecError(
            f"parallelism=pipeline: the model has {len(starts)} layers that can be "
            f"divided, which is too few for {num_stages} stages. Use at most "
            f"{len(starts)} (options.stages, or fewer devices), or a deeper model.",
            code="too_few_layers",
        )

    sizes = _even_sizes([costs[index] for index in starts], num_stages)
    firsts = [0, *(starts[end] for end in accumulate(sizes[:-1])), len(items)]
    return [nn.Sequential(*items[first:end]) for first, end in pairwise(firsts)]


def _even_sizes(costs: Sequence[int], num_parts: int) -> list[int]:
    """Return the lengths of consecutive parts whose largest sum is smallest."""
    sums = [0, *accumulate(costs)]
    # largest[n], sizes[n]: of the first n costs in as many parts as were counted so far
    largest: list[float] = list(sums)

    sizes = [[n] for n in range(len(sums))]
    for part in range(2, num_parts + 1):
        before, known = largest, sizes
        largest, sizes = [float("inf")] * len(sums), [[] for _ in sums]
        for n in range(part, len(sums)):
            cut = min(
                range(part - 1, n), key=lambda k: max(before[k], sums[n] - sums[k])
            )
            largest[n] = max(before[cut], sums[n] - sums[cut])
            sizes[n] = [*known[cut], n - cut]

    return sizes[-1]


def tied_parameters(
    stages: Sequence[nn.Module],
) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
    """Return the trained parameters that several stages hold, and which hold them."""
    holders: dict[nn.Parameter, list[int]] = {}
    for index, stage in enumerate(stages):
        for parameter in stage.parameters():
            if parameter.requires_grad:
                holders.setdefault(parameter, []).append(index)

    return [
        (parameter, tuple(indices))
        for parameter, indices in holders.items()
        if len(indices) > 1
    ]
