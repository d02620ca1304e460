"""The context of a rank: its attempt, its device and the other ranks."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from scalelab.errors import LaunchError
from scalelab.inputs.plain_files import read_file
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptFiles
from scalelab.training.rank_options import RankOptions

with suppress(ImportError):
    # torch.load does, and reads its source: so once, before ranks are forked.
    import torch.utils.serialization.config

if TYPE_CHECKING:
    from scalelab.training.servers.link import ServerLink

RENDEZVOUS_TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankContext:
    """The context of a rank: device, files, supervisor and process group."""

    identity: RankIdentity
    device: torch.device
    directory: Path
    stream: StreamWriter  # where rank 0 records; silent on the other ranks
    progress: Callable[[int], None] = field(repr=False)
    # When the attempt's time is up, on the monotonic clock; None: never.
    deadline_s: float | None = None
    pins_memory: bool = False
    options: RankOptions = field(default_factory=RankOptions)
    servers: ServerLink | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        """Position among all ranks."""
        return self.identity.rank

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.identity.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which decides, records and writes."""
        return self.identity.rank == 0

    @property
    def checkpoint_directory(self) -> Path:
        """Where rank 0 writes checkpoints."""
        return self.directory / "checkpoint"

    def prune_reason(self) -> str | None:
        """Return why the source of trials ends this attempt; None: it does not."""
        files = AttemptFiles(self.directory)
        with suppress(OSError):
            return read_file(files.prune, below=files.run).decode(errors="replace")
        return None

    def is_out_of_time(self) -> bool:
        """Tell whether the attempt's time is up."""
        return self.deadline_s is not None and time.monotonic() >= self.deadline_s

    def agree(self, values: Sequence[float]) -> list[float]:
        """Return rank 0's values on every rank; all ranks must call it."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor if self.is_first else tensor.zero_())
        return list[float](tensor.tolist())

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of the values over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return list[float](tensor.tolist())

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on rank 0; [] elsewhere.

        Other users of a node may reach the store where ranks meet, so that nothing a
        rank receives is executed.
        """
        file = io.BytesIO()
        torch.save(value, file)
        encoded = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        encoded = encoded.to(self.device)
        sizes = [
            torch.zeros(1, dtype=torch.int64, device=self.device)
            for _ in range(self.world_size)
        ]
        dist.all_gather(sizes, torch.tensor([len(encoded)], device=self.device))
        longest = max(int(size) for size in sizes)
        padded = torch.nn.functional.pad(encoded, (0, longest - len(encoded)))
        parts = [torch.empty_like(padded) for _ in sizes] if self.is_first else None
        dist.gather(padded, parts, dst=0)

        return [
            torch.load(
                io.BytesIO(part[: int(size)].cpu().numpy().tobytes()),
                map_location="cpu",  # the device of another rank may not be there
                weights_only=True,
            )
            for part, size in zip(parts or [], sizes, strict=False)
        ]


def claim_device(device_type: str, local_rank: int) -> torch.device:
    """Return the rank's device, making it the current one."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(
    identity: RankIdentity, rendezvous: str, device: torch.device, name: str
) -> Iterator[Store]:
    """Join the other ranks for the duration of the block.

    Yields the store where they have met.

    NCCL on CUDA, gloo on CPU. Ranks that end well wait for each other; one that fails
    leaves at once, and its supervisor ends the rest. A gloo group is left standing:
    tearing it down takes 20 ms of a process that is about to end. A caller whose
    process lives on calls ``torch.distributed.destroy_process_group``.
    """
    store = meeting_store(rendezvous, identity.world_size, name)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=identity.rank,
        world_size=identity.world_size,
        device_id=device if device.type == "cuda" else None,
    )

    # A NCCL communicator with work in flight would wait for the others if destroyed
    # after a failure; without, it has to be.
    yield store
    dist.barrier()

    if device.type == "cuda":
        dist.destroy_process_group()


def meeting_store(rendezvous: str, world_size: int, name: str) -> Store:
    """Return the store where processes of an attempt meet; see :func:`process_group`.

    gloo groups of this process are then made alike: torch crashes where they differ.
    """
    # Connections are made when two ranks first talk: a third of the start-up of many
    # ranks is a full mesh that ring and tree collectives never use.
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    address = urlsplit(rendezvous)
    if address.scheme == "file":
        return PrefixStore(name, FileStore(address.path, world_size))

    if address.scheme == "tcp" and address.hostname and address.port:
        store = TCPStore(
            address.hostname,
            address.port,
            world_size=None,
            is_master=False,
            timeout=RENDEZVOUS_TIMEOUT,
            wait_for_workers=False,
        )
        return PrefixStore(name, store)

    raise LaunchError(
        f"rendezvous={rendezvous!r} is not an address. "
        "Use file:///absolute/path or tcp://host:port."
    )
