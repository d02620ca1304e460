"""One rank of an attempt, from its seeds to its result."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from scalelab.errors import SpecError
from scalelab.experiment.program import WorkloadProgram
from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import slow_rank_factor
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.records.attempt import AttemptResult, AttemptSpec
from scalelab.training.context import RankContext, claim_device, process_group
from scalelab.training.description import device_name, versions
from scalelab.training.engines.base import Engine, FreeEngine
from scalelab.training.engines.paths import engine_path
from scalelab.training.feeding.node_copy import remove_copies
from scalelab.training.free_loop import FreeLoop
from scalelab.training.loop import Loop
from scalelab.training.memory_limit import (
    memory_limit,
    peak_resident_bytes,
    resident_bytes,
)
from scalelab.training.probes.device_monitor import DeviceMonitor
from scalelab.training.probes.meter import step_clock
from scalelab.training.rank_options import RankOptions
from scalelab.training.results import (
    RankReadings,
    conclude,
    device_columns,
    step_columns,
    target_columns,
    validity_of,
)
from scalelab.training.servers.link import linked_to_servers
from scalelab.training.servers.process import run_server
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.registry import workload_of


def run_rank(
    spec: AttemptSpec,
    identity: RankIdentity,
    rendezvous: str,
    progress: Callable[[int], None],
) -> AttemptResult | None:
    """Run one process of an attempt to its end: a rank, or a parameter server."""
    torch.set_num_threads(spec.threads_per_rank)
    if identity.is_server:
        run_server(spec, identity, rendezvous, progress)
        return None

    progress(0)
    workload, options = _workload(spec)
    new_engine = imported(workload.engine or engine_path(spec.trial.parallelism))
    device = claim_device(
        "cpu" if workload.emulated else spec.device_type, identity.local_rank
    )

    stream = StreamWriter(spec.files.stream if identity.rank == 0 else None)
    with (
        closing(stream),
        process_group(identity, rendezvous, device, spec.attempt_id) as store,
        linked_to_servers(spec.trial, store, identity.rank) as servers,
    ):
        context = RankContext(
            identity=identity,
            device=device,
            directory=Path(spec.directory),
            stream=stream,
            progress=progress,
            deadline_s=spec.deadline_s,
            pins_memory=options.pins_memory(device.type),
            options=options,
            servers=servers,
        )
        with memory_limit(options.memory_limit_bytes):
            return _run(spec, context, workload, options, new_engine)


def _run(
    spec: AttemptSpec,
    context: RankContext,
    workload: Workload,
    options: RankOptions,
    new_engine: Callable[..., Engine],
) -> AttemptResult | None:
    trial = spec.trial
    held_bytes = resident_bytes()
    monitor = DeviceMonitor(context.device)
    clock = step_clock(context.device)
    engine = new_engine(
        workload, trial, context, clock, loader_workers=options.loader_workers
    )
    is_free = context.servers is not None and isinstance(engine, FreeEngine)
    loop = FreeLoop if is_free else Loop
    tally = loop(
        context, trial, engine, clock, monitor, class_names=workload.class_names
    ).run()

    peak_bytes = engine.peak_memory_bytes()
    if options.memory_limit_bytes is not None and peak_bytes is None:
        peak_bytes = peak_resident_bytes() - held_bytes

    readings = RankReadings(
        steps=tally.readings,
        peak_memory_bytes=peak_bytes,
        device_memory_bytes=engine.device_memory_bytes(),
        utilization=monitor.utilization,
        energy_j=monitor.energy_j,
        power_w=monitor.power_w,
        validity=engine.validity(),
    )

    ranks = [RankReadings.received(sent) for sent in context.gather(readings.sent())]
    remove_copies(context)
    noise_scale = engine.gradient_noise_scale()

    if not context.is_first:
        return None

    global_batch_size, cycle = trial.global_batch_size, TrainingPlan.of(trial).cycle
    measurements = {
        "device_name": device_name(context.device),
        "emulated": workload.emulated,
        "num_samples": tally.step * global_batch_size,
        "versions": versions(),
        **step_columns([rank.steps for rank in ranks], global_batch_size, cycle=cycle),
        **device_columns(ranks),
        **target_columns(tally, trial, workload.default_metric),
        **engine.description(),
        "validity": validity_of(ranks),
        # Their readings were gathered by the group that they train in.
        "ranks_witness": "engine" if len(ranks) > 1 else None,
        "measured_by": "engine",
        "samples_witness": "engine",
        "gradient_noise_scale": noise_scale,
    }
    return conclude(tally, trial, measurements)


def _workload(spec: AttemptSpec) -> tuple[Workload, RankOptions]:
    program = spec.program
    if not isinstance(program, WorkloadProgram):
        raise SpecError(
            f"{spec.trial.workload!r} is a command, and ranks run workloads only."
        )

    workload, options = workload_of(program, spec.trial)
    factor = slow_rank_factor(spec.trial.options)
    idle = [f"options.slow_rank_factor={factor:g}"] if factor > 1 else []

    idle += ["compile=True"] if options.compile else []
    if idle and workload.engine is not None:
        raise SpecError(
            f"{idle[0]} has no effect on workload {program.name!r}, which computes "
            "its steps by itself. Leave it out."
        )

    return workload, options
