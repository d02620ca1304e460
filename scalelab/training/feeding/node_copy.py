"""Copies of the training data on a node's own disk, made before the first step."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol, runtime_checkable

from scalelab.errors import SpecError
from scalelab.inputs.numerals import number
from scalelab.launch.protocol import NODE_DIRECTORY
from scalelab.training.context import RankContext
from scalelab.training.order import Share

_GIB = 2**30


@runtime_checkable
class CopiedData(Protocol):
    """Data whose samples are copied to a node before they are trained on."""

    def sizes(self) -> list[int]:
        """Return the bytes of every sample."""

    def copy(self, index: int, directory: Path) -> None:
        """Copy a sample from where it is stored."""

    def read_from(self, directory: Path) -> None:
        """Read samples from their copies from now on."""


def copy_to_node(
    data: CopiedData, context: RankContext, share: Share, *, is_sharded: bool
) -> None:
    """Copy what the ranks of this node train on; return when all ranks have theirs.

    A rank with a part of the data of its own copies that, else the ranks of a node
    share out all samples.
    """
    identity, sizes = context.identity, data.sizes()
    wanted = range(len(sizes))[identity.local_rank :: identity.local_world_size]
    if is_sharded:
        wanted = range(len(sizes))[share.rank :: share.data_parallel_size]

    directory = _directory(context)
    directory.mkdir(parents=True, exist_ok=True)
    # the other ranks of the node copy as much
    needed = sum(sizes[at] for at in wanted) * identity.local_world_size

    free = shutil.disk_usage(directory).free
    if needed > free:
        raise SpecError(
            f"feed=copy_first: a node copies {number(needed / _GIB)} GiB to "
            f"{directory}, where {number(free / _GIB)} GiB are free. Set TMPDIR to a "
            "larger disk of the nodes, or stream: feed=folder or tar.",
            code="disk_too_small",
        )

    context.agree([0.0])  # nobody copies before all have looked
    for index in wanted:
        data.copy(index, directory)
        context.progress(0)

    context.agree([0.0])
    data.read_from(directory)


def remove_copies(context: RankContext) -> None:
    """Remove the copies of this node; all its ranks have ended their training."""
    if context.identity.local_rank == 0:
        shutil.rmtree(_directory(context), ignore_errors=True)


def _directory(context: RankContext) -> Path:
    attempt = hashlib.sha256(os.fsencode(context.directory)).hexdigest()[:12]
    place = os.environ.get(NODE_DIRECTORY) or tempfile.gettempdir()
    return Path(place) / f"copies-{attempt}"
