"""The shell lines that start the recommended job, for its batch script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalelab.errors import SpecError
from scalelab.experiment.batch_sizes import samples_on_node
from scalelab.inputs.placeholders import fill_placeholders
from scalelab.kinds.launchers import LAUNCHERS, RecommendedJob
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.site.profile import Site

if TYPE_CHECKING:
    from scalelab.experiment.spec import Experiment


def job_lines(experiment: Experiment, site: Site, answer: Recommendation) -> list[str]:
    """Return the experiment's command with the recommended values filled in.

    Placeholders that only a sweep knows become the job's own: ``{trial_dir}`` is the
    directory the job is submitted from. A built-in workload has no command; the line is
    then a comment that says what to start.

    Raises
    ------
    SpecError
        If the nodes hold different numbers of ranks, which no launch line can say.
    """
    row = answer.chosen
    if row.world_size % row.num_nodes:
        raise SpecError(
            f"{row.world_size} ranks on {row.num_nodes} nodes are uneven ("
            f"{row.allocation}); a job script starts as many on each. Pass --gpus with "
            f"multiples of {row.num_nodes}."
        )
    if experiment.command is None:
        batch = row.batch
        return [
            f"# Start your training here: {row.world_size} ranks, "
            f"local batch {batch.local_batch_size}, "
            f"{batch.gradient_accumulation_steps} accumulation steps."
        ]
    system = site.batch_system
    if system and not system.passes_environment:
        system = None  # a launcher would not be found on the other nodes
    job = RecommendedJob(
        command=fill_placeholders(experiment.command, _values(experiment, answer)),
        num_nodes=row.num_nodes,
        devices_per_node=row.world_size // row.num_nodes,
        on_each_node=" ".join(system.on_all_nodes) if system else None,
        first_host=system.first_host or None if system else None,
    )
    return LAUNCHERS[experiment.launcher].job_lines(job)


def _values(experiment: Experiment, answer: Recommendation) -> dict[str, object]:
    row, rate, rates = answer.chosen, answer.learning_rate, experiment.learning_rate
    batch, per_node = row.batch, row.world_size // row.num_nodes
    return {
        "local_batch_size": batch.local_batch_size,
        "global_batch_size": batch.global_batch_size,
        "batch_size_per_node": samples_on_node(
            batch.local_batch_size,
            devices=per_node,
            world_size=row.world_size,
            data_parallel_size=batch.data_parallel_size,
        ),
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        **({"learning_rate": f"{rate.value:g}"} if rate else {}),
        **({"base_learning_rate": f"{rates.base:g}"} if rates else {}),
        "world_size": row.world_size,
        "num_nodes": row.num_nodes,
        "gpus_per_node": per_node,
        "seed": experiment.seed[0],
        "trial_dir": ".",
        **row.settings,
    }
