"""A launcher that numbers processes under names of its own."""

from collections.abc import Mapping

from scalelab.kinds.launchers import LaunchedProcess, Launcher, RecommendedJob


class ToyLauncher(Launcher):
    name = "toyrun"

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return {
            "TOY_RANK": str(process.rank),
            "TOY_SIZE": str(process.world_size),
            "TOY_MEET": f"{process.master_addr}:{process.master_port}",
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        return [f"toyrun -n {job.num_nodes * job.devices_per_node} {job.command}"]


TOYRUN = ToyLauncher()
