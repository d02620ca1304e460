"""The Dask worker that is a node."""

from __future__ import annotations

from typing import Any

from distributed import Worker

from scalelab.cluster.steady_batches import keep_batches_steady


class NodeWorker(Worker):
    """A Dask worker without an HTTP server.

    Dask's own listens on all addresses and asks nobody who they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        keep_batches_steady()
        super().__init__(*args, **kwargs)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start no HTTP server."""
