"""Jobs of dask-jobqueue that submit the scripts that ScaleLab has written."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from scalelab.cluster.batch.programs import ask
from scalelab.cluster.batch.queue import BatchJob, scheduler_words
from scalelab.errors import BusyError
from scalelab.kinds.registry import imported


def job_class(path: str) -> type:
    """Return a class of dask-jobqueue's jobs; only the main thread can load it."""
    # dask-jobqueue replaces what Ctrl-C does when it is imported.
    before = signal.getsignal(signal.SIGINT)
    try:
        found: type = imported(path)
    finally:
        with suppress(ValueError):  # not in the main thread, where it changed nothing
            signal.signal(signal.SIGINT, before)
    return found


def scripted_job(
    base: type,
    name: str,
    script: str,
    job_id: str | None,
    *,
    busy: re.Pattern[str],
    **attributes: str,
) -> BatchJob:
    """Return a job that submits the script it is given."""
    body = {**attributes, "busy": busy}
    job: BatchJob = type("ScriptedJob", (_ScriptedJob, base), body)(
        name, script, job_id
    )
    return job


class _ScriptedJob:
    """A base before a class of dask-jobqueue, whose own scripts ask for no GPU."""

    busy: ClassVar[re.Pattern[str]]

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
    async def _call(cls, cmd: Sequence[str], **_: Any) -> str:
        """Run a program; dask-jobqueue leaves one behind that takes too long."""
        answer = await ask(cmd)
        if answer.status:
            error = RuntimeError(
                answer.errors or f"{cmd[0]} ended with {answer.status}"
            )
            if cls.busy.search(answer.errors):
                raise BusyError(scheduler_words(error)) from error
            raise error
        return answer.output

    @classmethod
    async def _close_job(cls, job_id: str | None, cancel_command: str) -> None:
        """Cancel a job, unless it has ended: what is refused for good is no more."""
        if job_id is not None:
            with suppress(RuntimeError):
                await cls._call([*shlex.split(cancel_command), job_id])
