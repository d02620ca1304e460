from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One Dask worker and the devices that trials may use there."""

    name: str  # a worker that is restarted keeps it, and has another address
    address: str
    host: str
    # Slots in the order they are handed out: core numbers on CPU, indices or UUIDs on
    # CUDA. An id that occurs twice is a core that several slots share.
    device_ids: tuple[str, ...]
    device_name: str
    num_cores: int
    memory_bytes: int
    group: str | None = None  # of the site; None where its nodes are alike
    device_type: str = "cpu"

    @property
    def job(self) -> str:
        """Name of the batch job it belongs to; empty where there is none."""
        return self.name.partition("/")[2]
