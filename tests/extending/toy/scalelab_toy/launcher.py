"""A launcher that numbers processes under names of its own."""

from collections.abc import Mapping

from scalelab.kinds.launchers import (
    LaunchedProcess,
    Launcher,
    RecommendedJob,
    per_device,
)


def environment(process: LaunchedProcess) -> Mapping[str, str]:
    """Return what a process is told."""
    return {
        "TOY_RANK": str(process.rank),
        "TOY_SIZE": str(process.world_size),
        "TOY_MEET": f"{process.master_addr}:{process.master_port}",
    }


def job_lines(job: RecommendedJob) -> list[str]:
    """Return the line that starts the recommended job."""
    return [f"toyrun -n {job.num_nodes * job.devices_per_node} {job.command}"]


TOYRUN = Launcher(
    name="toyrun", processes=per_device, environment=environment, job_lines=job_lines
)
