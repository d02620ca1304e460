"""A layout: how a program that splits its model by itself spreads it over the ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.numerals import counted

_COLUMNS: Mapping[str, str] = {
    "tensor": "tensor_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_parallel_size",
    "replicate": "data_replicate_size",
    "shard": "data_shard_size",
}
_SHORT: Mapping[str, str] = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
    "replicate": "replicate",
    "shard": "shard",
}


class MicroBatches(StrEnum):
    """Where the micro-batches of a pipeline come from."""

    ACCUMULATION = "accumulation"
    SPLIT = "split"


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The degrees of model and data parallelism of a trial.

    Parameters
    ----------
    tensor, pipeline, context
        Ranks among which each layer, the layers, and each sequence are divided. Their
        product is a replica: the ranks that compute the same samples.
    expert
        Data-parallel ranks among which the experts of a layer are divided.
    replicate
        Copies of the training state; None: as many as the rest of the ranks allows.
    shard
        Data-parallel ranks over which each copy is spread; None: the rest. Exactly one
        of the two is None.
    micro_batches
        ``accumulation``: each forward pass of the local batch is one micro-batch.
        ``split``: the program splits the local batch, into at least one micro-batch for
        each stage of the pipeline.

    Notes
    -----
    ``world_size = tensor * pipeline * context * data_parallel_size`` and
    ``data_parallel_size = replicate * shard``, as in Megatron-LM (Narayanan et al.
    2021, section 3) with the groups of hybrid sharding (Zhao et al. 2023, *PyTorch
    FSDP*, section 3.2). Experts are divided among data-parallel ranks and need no
    further ones (Rajbhandari et al. 2022, *DeepSpeed-MoE*).
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    replicate: int | None = 1
    shard: int | None = None
    micro_batches: str = MicroBatches.ACCUMULATION.value

    @classmethod
    def of_degrees(cls, named: Mapping[str, object]) -> Self | None:
        """Return the layout whose degrees are among named values.

        None where one is missing, as in a table that somebody else measured.
        """
        found = {name: named.get(column) for name, column in _COLUMNS.items()}
        sizes: dict[str, Any] = {
            name: size for name, size in found.items() if type(size) is int
        }
        if len(sizes) != len(_COLUMNS) - 1 or {"replicate", "shard"} <= sizes.keys():
            return None
        return cls(**{"replicate": None, **sizes})

    @property
    def replica_size(self) -> int:
        """Ranks that compute the same samples."""
        return self.tensor * self.pipeline * self.context

    @property
    def degrees(self) -> Mapping[str, int]:
        """The degrees that do not depend on the world size, by placeholder."""
        return {
            column: size
            for name, column in _COLUMNS.items()
            if (size := getattr(self, name)) is not None
        }

    def sizes(self, world_size: int) -> Mapping[str, int]:
        """Return every degree on so many ranks, by placeholder."""
        parallel = self.data_parallel_size(world_size)
        return {
            "data_parallel_size": parallel,
            "data_replicate_size": parallel // (self.shard or 1),
            "data_shard_size": parallel // (self.replicate or 1),
            **self.degrees,
        }

    def data_parallel_size(self, world_size: int) -> int:
        """Return how many replicas see different samples."""
        parallel, rest = divmod(world_size, self.replica_size)
        if rest:
            raise SpecError(
                f"layout: tensor={self.tensor} x pipeline={self.pipeline} x context="
                f"{self.context} (={self.replica_size}) does not divide "
                f"{counted(world_size, 'device')}. Use a multiple of "
                f"{self.replica_size} devices, or smaller degrees.",
                code="layout_does_not_divide",
            )

        groups = {
            "expert": self.expert,
            "data.replicate": self.replicate,
            "data.shard": self.shard,
        }
        for name, size in groups.items():
            if parallel % (size or 1):
                raise SpecError(
                    f"layout: {name}={size} does not divide data_parallel_size="
                    f"{parallel}, which is {counted(world_size, 'device')} / "
                    f"{self.replica_size} of a replica. Use a multiple of "
                    f"{self.replica_size * (size or 1)} devices, or another {name}.",
                    code="degree_does_not_divide",
                )

        return parallel

    def check_nodes(self, allocation: Allocation) -> None:
        """Refuse nodes on whose devices no whole number of tensor groups fits."""
        for devices in allocation.devices_per_node:
            if devices % self.tensor:
                raise SpecError(
                    f"layout: tensor={self.tensor} does not divide the "
                    f"{counted(devices, 'device')} of a node of {allocation}: a layer "
                    "would be divided across nodes, whose links are slow. Use a "
                    "divisor, other devices, or allow it with "
                    "layout.tensor_across_nodes: true.",
                    code="layer_across_nodes",
                )

    def check_local_batch(self, local_batch_size: int) -> None:
        """Refuse a local batch of fewer samples than micro-batches are needed."""
        if local_batch_size < self._num_splits:
            raise SpecError(
                f"layout: local_batch_size={local_batch_size} has less than a sample "
                f"for each of the pipeline={self.pipeline} stages, and "
                "layout.micro_batches=split splits it into at least one micro-batch "
                f"per stage. Use at least {self.pipeline}, or fewer stages.",
                code="batch_below_stages",
            )

    def micro_batch_size(self, local_batch_size: int) -> int:
        """Return the samples of one micro-batch.

        Where the program splits the local batch, that is the largest size of equal
        micro-batches of which there is at least one per stage.

        >>> split = Layout(pipeline=4, micro_batches="split")
        >>> [split.micro_batch_size(local) for local in (4, 6, 8, 14)]
        [1, 1, 2, 2]
        """
        most = max(1, local_batch_size // self._num_splits)
        return next(n for n in range(most, 0, -1) if local_batch_size % n == 0)

    @property
    def _num_splits(self) -> int:
        return self.pipeline if self.micro_batches == MicroBatches.SPLIT else 1

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.degrees.items())


def short_label(settings: Mapping[str, object]) -> str:
    """Return the degrees among settings as the field abbreviates them.

    >>> short_label({"precision": "bf16", "tensor_parallel_size": 2})
    'tp2'
    """
    return " ".join(
        f"{_SHORT[name]}{settings[column]}"
        for name, column in _COLUMNS.items()
        if column in settings
    )
