"""The link between nodes, as NCCL's own lines in the logs of trials have it.

With NCCL_DEBUG=INFO, NCCL names the network adapters that it would use and how many
Mbit/s each has, also where all ranks are on one node::

    NCCL INFO NET/IB: [0] mlx5_0:uverbs0:1/IB provider=Mlx5 speed=200000 context=...

An exchange is spread over all of them. Interfaces without RDMA are named without speed.
"""

import re
from contextlib import suppress
from pathlib import Path

from scalelab.errors import StoreError
from scalelab.inputs.links import Link
from scalelab.inputs.plain_files import opened
from scalelab.records.ledger import attempts_on_disk

_ADAPTER = re.compile(rb"NCCL INFO NET/IB: \[\d+\] (\S+) [^\n]*?\bspeed=(\d{1,9})\b")
_LATEST, _HEAD_BYTES = 5, 1 << 20  # attempts to look at, and bytes of each log


def logged_link(trials: Path) -> Link | None:
    """Return the link that the log of a late attempt names, in the trials of a run."""
    ages = {}
    with suppress(OSError, StoreError):
        for _, files in attempts_on_disk(trials):
            ages[files] = -files.directory.stat().st_mtime_ns

    for files in sorted(ages, key=lambda files: ages[files])[:_LATEST]:
        log = files.log(0)
        with suppress(OSError), opened(log, below=trials.parent) as file:
            adapters = dict(_ADAPTER.findall(file.read(_HEAD_BYTES)))
            if adapters and (mbit_per_s := sum(map(int, adapters.values()))):
                return Link(
                    bandwidth_bytes_per_s=mbit_per_s * 1e6 / 8, said_by="NCCL's log"
                )

    return None
