"""Jobs of dask-jobqueue with scripts of ScaleLab's."""

from __future__ import annotations

import shlex
from typing import Any

from scalelab.cluster.batch.queue import is_out_of_reach, scheduler_words
from scalelab.errors import ClusterError


class ScriptedJob:
    """What makes a job of dask-jobqueue submit the script it is given.

    Those of its own ask for one process and no GPU. A base beside ``SLURMJob`` or
    ``PBSJob``, and before it.

    Parameters
    ----------
    name
        The job's.
    script
        What it runs; unused where a job that is known is cancelled.
    job_id
        Its id, where it is known.
    """

    def __init__(self, name: str, script: str, job_id: str | None) -> None:
        # Required, and meant for the script that is not used.
        unused: dict[str, Any] = {"scheduler": "", "cores": 1, "memory": "1GB"}
        self._script = script  # first: PBSJob reads it while it is made
        super().__init__(name=name, job_name=name, **unused)  # type: ignore[call-arg]
        self.job_id = job_id

    def job_script(self) -> str:
        """Return the script."""
        return self._script

    @classmethod
    async def _close_job(cls, job_id: str | None, cancel_command: str) -> None:
        """Cancel a job; dask-jobqueue takes every failure for a job that has ended."""
        if job_id is None:
            return
        try:
            await cls._call([*shlex.split(cancel_command), job_id])  # type: ignore[attr-defined]
        except RuntimeError as error:
            words = scheduler_words(error)
            if is_out_of_reach(words):
                raise ClusterError(words) from error
