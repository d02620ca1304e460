from pathlib import Path
from typing import ClassVar

from scalelab.kinds.trainers import Trainer, WorkloadFacts, WorkloadNames


class ToyTrainer(Trainer):
    name = "toy"
    entry = "scalelab_toy.rank:run_rank"
    workloads: ClassVar = {"sleep": WorkloadFacts(trains_model=False)}

    def names(self, workload: str, code_directory: Path | None) -> WorkloadNames:
        return WorkloadNames(parameters=("sample_time_s",), metrics=())
