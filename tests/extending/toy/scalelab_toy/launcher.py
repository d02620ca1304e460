from collections.abc import Mapping

from scalelab.kinds.launchers import LaunchedProcess, Launcher, RecommendedJob


class Toyrun(Launcher):
    name = "toyrun"

    def environment(self, process: LaunchedProcess) -> Mapping[str, str]:
        return {
            "TOY_RANK": str(process.rank),
            "TOY_SIZE": str(process.world_size),
            "TOY_MEET": process.rendezvous,
        }

    def job_lines(self, job: RecommendedJob) -> list[str]:
        return job.start_per_device(
            {
                "TOY_RANK": "$rank",
                "TOY_SIZE": "$num_processes",
                "TOY_MEET": '"$MASTER_ADDR:$MASTER_PORT"',
            }
        )
