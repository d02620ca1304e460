"""Launcher ``none``: one process for a whole trial, which starts its own ranks."""

from __future__ import annotations

from collections.abc import Mapping

from scalelab.kinds.launchers.job_script import ALONE
from scalelab.kinds.launchers.row import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_node,
)


def _single_environment(process: LaunchedProcess) -> Mapping[str, str]:
    """Return where ranks meet that the command starts by itself."""
    port = str(process.master_port)
    return {
        "MASTER_ADDR": process.master_addr,
        "MASTER_PORT": port,
        # What a torchrun inside the command uses instead of its one fixed port.
        "PET_MASTER_PORT": port,
    }


def _single_job(job: RecommendedJob) -> list[str]:
    port = f"MASTER_PORT={job.port} PET_MASTER_PORT={job.port}"
    return [f"export MASTER_ADDR=127.0.0.1 {port}", job.line(ALONE)]


NONE = Launcher(
    name="none",
    processes=per_node,
    environment=_single_environment,
    job_lines=_single_job,
    only_one_node="starts one process per trial",
    shares_reports=True,
)
