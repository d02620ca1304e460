from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from scalelab.cluster.batch.programs import Answer, ask, said_by
from scalelab.cluster.batch.queue import BatchJob, JobState, JobView
from scalelab.cluster.survey.inventory import Inventory, NodeGroup, Queue
from scalelab.errors import ClusterError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.fields import Word
from scalelab.kinds.batch_systems import BatchSystem
from scalelab.records.afterwards.accounted_job import AccountedJob
from scalelab.records.afterwards.waits import JobWait
from scalelab.site.batch_site import BatchSite, DriverJob, clock, mebibytes
from scalelab.site.node_settings import BatchNodeSettings, GroupName


class Toy(BatchSystem):
    name = "toy"
    site = "scalelab_toy.batch_system:ToySite"
    client = "scalelab_toy.batch_system:ToyClient"
    directive = "#TOY"
    queue_noun = "lane"
    programs = ("toysub", "toystat", "toykill")
    survey_program = "toyhosts"
    reserved_options = re.compile(
        r"-(name|lane|account|hosts|cores|gpus|gpu-model|memory|limit|alone|log|once)\b"
    )
    refused_in_logs = re.compile(" ")
    job_variable = "TOY_JOB"

    def log_options(self, log: Path) -> tuple[str, ...]:
        return (f"-log {log}", "-once")

    def after(self, job_id: str) -> str:
        return f"-after {job_id}"

    def once_per_node(
        self, num_nodes: int, cores: int | None = None, *, in_held_job: bool = False
    ) -> str:
        return "toyrun"


class ToyNodeSettings(BatchNodeSettings):
    lane: Word | None = None


class ToyDriverJob(DriverJob):
    lane: Word | None = None


class ToySite(BatchSite, ToyNodeSettings):
    scheduler: Literal["toy"]
    node_groups: Mapping[GroupName, ToyNodeSettings] = {}
    driver_job: ToyDriverJob | None = None

    def request(
        self, allocation: Allocation, job_name: str, walltime_s: float | None
    ) -> list[str]:
        gpus = max(allocation.devices_per_node) if self.asks_for_gpus else None
        settings = {
            "name": job_name,
            "lane": self.lane,
            "account": self.account,
            "hosts": allocation.num_nodes,
            "cores": self.cores_per_node,
            "gpus": gpus,
            "gpu-model": self.gpu_type,
            "memory": mebibytes(self.memory_per_node, "M"),
            "limit": clock(walltime_s),
            "alone": "yes" if self.exclusive else None,
        }
        return [f"-{name} {value}" for name, value in settings.items() if value]


class ToyJob:
    def __init__(self, script: str, job_id: str | None) -> None:
        self.script, self.job_id = script, job_id

    async def start(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(self.script)
            file.flush()
            self.job_id = _required(await ask(["toysub", file.name])).strip()

    async def close(self) -> None:
        _required(await ask(["toykill", str(self.job_id)]))


class ToyClient:
    def job(self, name: str, script: str = "", job_id: str | None = None) -> BatchJob:
        return ToyJob(script, job_id)

    async def look(self, jobs: Mapping[str, str]) -> dict[str, JobView]:
        said = json.loads(_required(await ask(["toystat", *jobs.values()])))
        return {
            name: JobView(state=JobState(said[job_id]))
            for name, job_id in jobs.items()
            if job_id in said
        }

    @staticmethod
    def survey() -> Inventory:
        hosts = NodeGroup(**json.loads(said_by(["toyhosts"])))
        lane = Queue(name="fast", groups=(hosts,), is_default=True)
        return Inventory(scheduler="toy", cluster_name="toyland", queues=(lane,))

    @staticmethod
    def accounted(job_ids: Sequence[str]) -> dict[str, AccountedJob]:
        return {}  # it forgets jobs that have ended

    @staticmethod
    def queue_waits(queue: str | None) -> list[JobWait]:
        raise ClusterError("toyland shows no waits of the jobs of all users.")

    @staticmethod
    def nodes_may_submit(queue: str | None) -> bool | None:
        return asyncio.run(ask(["toystat", "--nodes-may-submit"])).status == 0


def _required(answer: Answer) -> str:
    if answer.status:
        raise ClusterError(answer.errors)
    return answer.output
