"""Run one trial of an experiment in this process, for use with a debugger."""

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.kinds.trainers import trainer_of
from scalelab.plan.configurations import MAX_TRIALS
from scalelab.plan.tracked import source_of
from scalelab.records.attempt import (
    AttemptResult,
    AttemptSpec,
    KnownWorkload,
    NodeShare,
    Placement,
)
from scalelab.site.profile import Site


def debug(
    experiment: str | Path, *, site: str | None = None
) -> tuple[Trial, AttemptResult]:
    """Run the first one-device trial in this process, without fork or supervisor.

    The code runs where it lies, so that breakpoints in it are met. Nothing is recorded.
    """
    from scalelab.cluster.devices import local_devices
    from scalelab.launch.ranks.rank_process import run_in_process

    asked = Experiment.from_file(experiment)
    where = asked.resolve_site(site)
    trial = _first_on_one_device(asked, where)
    device_type = where.in_group(trial.node_group).device_type.value
    share = NodeShare(node="here", device_ids=local_devices(device_type)[:1])
    with TemporaryDirectory(prefix="scalelab-") as directory:
        spec = AttemptSpec(
            run=asked.name,
            trial=trial,
            program=asked.programs()[trial.program],
            number=1,
            directory=directory,
            placement=Placement(shares=(share,)),
            device_type=device_type,
            known=KnownWorkload.named(trial.workload),
        )
        return trial, run_in_process(spec, trainer_of(trial.workload)[0])


def _first_on_one_device(asked: Experiment, site: Site) -> Trial:
    for alone in asked.by_program().values():
        if alone.command is not None:
            raise SpecError(
                f"command: {alone.command[:60]!r} is a program of its own; only a "
                "workload class can run in this process. Start the command under its "
                "own debugger."
            )
    sizes = set()
    for trial in islice(iter(source_of(asked, site).ask, None), MAX_TRIALS):
        if trial.world_size == 1:
            return trial
        sizes.add(trial.world_size)
    raise SpecError(
        f"the trials take {', '.join(map(str, sorted(sizes)))} devices; one process "
        "can hold 1. Add 1 to gpus, or debug a copy of the experiment with gpus: 1."
    )
