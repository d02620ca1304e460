"""The process that a job starts on each node: ``python -m ... nodes.json JOB``.

A nanny of Dask's keeps the node's worker running. Both end when the driver does.
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import dask
from distributed import Nanny
from distributed.security import Security

from scalelab.cluster.dask_nodes import DASK_SETTINGS
from scalelab.cluster.devices import granted_devices
from scalelab.cluster.network import address_of_node
from scalelab.cluster.node_options import NodeOptions
from scalelab.cluster.node_plugin import NodePlugin, nanny_options
from scalelab.errors import ScaleLabError
from scalelab.launch.gang_agent import CLOSE_WITHIN_S
from scalelab.launch.scratch import make_scratch

# What nodes wait for their attempts to save, a little for the rest, and Dask's share.
_CLOSE_WITHIN_S = (CLOSE_WITHIN_S + 3) / 0.8
# How long a node tries to reach the driver before it gives up.
_REACH_WITHIN_S = 60.0


async def serve(options: NodeOptions, job_name: str, scratch: Path) -> None:
    """Run a node's Dask worker until the driver or the job ends."""
    host = address_of_node(options.interface, options.scheduler)
    plugin = NodePlugin(
        device_type=options.device_type,
        device_ids=granted_devices(options.device_type, options.num_devices),
        group=options.group,
        preload=options.preload,
        entry=options.entry,
    )

    security = Security(require_encryption=True, **options.tls_files)
    nanny = Nanny(
        options.scheduler,
        # Unique, since a host has one node of a job.
        name=f"{socket.gethostname().partition('.')[0]}/{job_name}",
        death_timeout=_REACH_WITHIN_S,
        silence_logs=logging.WARNING,
        **nanny_options(plugin, host, security, str(scratch)),
    )

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async with nanny:
        finished = asyncio.ensure_future(nanny.finished())
        ending = asyncio.ensure_future(ended.wait())
        await asyncio.wait((finished, ending), return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await nanny.close(timeout=_CLOSE_WITHIN_S)
        ending.cancel()


def main() -> None:
    """Run a node with the options file and job that the command line names."""
    path, job_name = sys.argv[1:]
    scratch = make_scratch()

    settings = {**DASK_SETTINGS, "temporary-directory": str(scratch)}
    try:
        with dask.config.set(settings):
            asyncio.run(serve(NodeOptions.read(Path(path)), job_name, scratch))
    except (ScaleLabError, OSError) as error:
        here = f"{socket.gethostname()}, process {os.getpid()}"
        sys.exit(f"scalelab: {here} cannot join the sweep: {error}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
