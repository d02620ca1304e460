"""Jobs of dask-jobqueue that submit the scripts that ScaleLab has written."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from scalelab.cluster.batch.programs import ask
from scalelab.cluster.batch.queue import BatchJob, is_out_of_reach, scheduler_words
from scalelab.errors import ClusterError
from scalelab.kinds.registry import imported


def job_class(path: str) -> type:
    """Return a class of dask-jobqueue's jobs; only the main thread can load it.

    Parameters
    ----------
    path
        Its path, ``module:attribute``.
    """
    # dask-jobqueue replaces what Ctrl-C does when it is imported.
    before = signal.getsignal(signal.SIGINT)
    try:
        found: type = imported(path)
    finally:
        with suppress(ValueError):  # not in the main thread, where it changed nothing
            signal.signal(signal.SIGINT, before)
    return found


def scripted_job(
    base: type, name: str, script: str, job_id: str | None, **attributes: str
) -> BatchJob:
    """Return a job that submits the script it is given.

    Parameters
    ----------
    base
        The class of dask-jobqueue that submits it.
    name
        Name of the job.
    script
        What it runs; unused where a job that is known is cancelled.
    job_id
        Its id, where it is known.
    attributes
        What differs from that class: ``cancel_command``, ``job_id_regexp``.
    """
    job: BatchJob = type("ScriptedJob", (_ScriptedJob, base), attributes)(
        name, script, job_id
    )
    return job


class _ScriptedJob:
    """A base before a class of dask-jobqueue, whose own scripts ask for no GPU."""

    def __init__(self, name: str, script: str, job_id: str | None) -> None:
        # Required, and meant for the script that is not used.
        unused: dict[str, Any] = {"scheduler": "", "cores": 1, "memory": "1GB"}
        self._script = script  # first: PBSJob reads it while it is made
        super().__init__(name=name, job_name=name, **unused)  # type: ignore[call-arg]
        self.job_id = job_id

    def job_script(self) -> str:
        """Return the script."""
        return self._script

    @staticmethod
    async def _call(cmd: Sequence[str], **_: Any) -> str:
        """Run a program; dask-jobqueue leaves one behind that takes too long."""
        answer = await ask(cmd)
        if answer.status:
            raise RuntimeError(answer.errors or f"{cmd[0]} ended with {answer.status}")
        return answer.output

    @classmethod
    async def _close_job(cls, job_id: str | None, cancel_command: str) -> None:
        """Cancel a job; dask-jobqueue takes every failure for a job that has ended."""
        if job_id is None:
            return
        try:
            await cls._call([*shlex.split(cancel_command), job_id])
        except RuntimeError as error:
            words = scheduler_words(error)
            if is_out_of_reach(words):
                raise ClusterError(words) from error
