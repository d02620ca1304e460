"""One rank of an attempt, from its seeds to its result, of the readings of all."""

import math
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from scalelab.errors import SpecError
from scalelab.experiment.program import WorkloadProgram
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.outcome import Outcome
from scalelab.kinds.registry import imported
from scalelab.kinds.strategies import slow_rank_factor
from scalelab.launch.progress import StreamWriter
from scalelab.launch.protocol import RankIdentity
from scalelab.launch.steady import cycle_means, interval_columns, later_columns
from scalelab.records.attempt import AttemptResult, AttemptSpec, encode_json
from scalelab.training.context import RankContext, claim_device, process_group
from scalelab.training.description import device_name, versions
from scalelab.training.engines.base import Engine, FreeEngine
from scalelab.training.engines.paths import engine_path
from scalelab.training.feeding.node_copy import remove_copies
from scalelab.training.loop import Ending, FreeLoop, Loop, StepTally
from scalelab.training.probes.device_monitor import DeviceMonitor
from scalelab.training.probes.meter import Phase, Seconds, step_clock
from scalelab.training.rank_options import RankOptions
from scalelab.training.servers.link import linked_to_servers
from scalelab.training.servers.process import run_server
from scalelab.training.step_plan import TrainingPlan
from scalelab.training.workloads.base import Workload
from scalelab.training.workloads.registry import workload_of

# What torch says when the CPU allocator gets nothing; it has no class of its own.
_ALLOCATION_FAILURES = (
    "can't allocate memory",
    "not enough memory",
    "could not allocate memory",
    "std::bad_alloc",
)


@contextmanager
def memory_limit(limit_bytes: int | None) -> Iterator[None]:
    """Limit the further memory that this process may allocate during the block.

    The limit plays the part of a device's memory: what the process holds on entry
    (Python, torch, the loaded libraries) is not counted, what it allocates afterwards
    (model, gradients, activations) is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes is not None:
        held = _status_bytes("VmData")
        resource.setrlimit(resource.RLIMIT_DATA, (held + limit_bytes, hard))

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = str(error).lower()
        is_full = any(sign in words for sign in _ALLOCATION_FAILURES)

        is_lack = isinstance(error, MemoryError) or is_full
        if isinstance(error, torch.OutOfMemoryError) or not is_lack:
            raise
        if limit_bytes is None:
            raise MemoryError(str(error)) from error

        raise torch.OutOfMemoryError(
            f"memory_limit_bytes={limit_bytes} reached: {error}"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def peak_resident_bytes() -> int:
    """Return the peak physical memory of this process."""
    return _status_bytes("VmHWM")


def resident_bytes() -> int:
    """Return the physical memory of this process."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReadings:
    """The measurements of one rank and its device; None where unknown."""

    steps: Seconds  # its clock after warm-up, shape (num_steps, 4)
    peak_memory_bytes: int | None
    device_memory_bytes: int | None
    utilization: float | None
    energy_j: float | None
    power_w: float | None
    validity: tuple[str, ...] = ()  # what makes its times unfit for a fit

    def sent(self) -> dict[str, Any]:
        """Return what another rank makes the same readings of; see :meth:`received`."""
        return {**asdict(self), "steps": torch.from_numpy(self.steps)}

    @classmethod
    def received(cls, values: dict[str, Any]) -> Self:
        """Return the readings that a rank sent."""
        return cls(**{**values, "steps": values["steps"].numpy()})


def validity_of(ranks: Sequence[RankReadings]) -> list[str] | None:
    """Return the reasons why times of any rank are unfit for a law; None: no reason."""
    return sorted({reason for rank in ranks for reason in rank.validity}) or None


def step_columns(
    ranks: Sequence[Seconds], global_batch_size: int, *, cycle: int = 1
) -> dict[str, Any]:
    """Return step time, its interval, its phases and the throughput, by column.

    The step time is the mean of the slowest rank, and the throughput is the samples of
    all ranks over that rank's clock. A phase is a mean over steps and ranks: ranks that
    keep step differ in where they spend their time, not in how much they need.

    ``ranks`` are their clocks, shape (num_steps, 4), in seconds; the same steps on all.

    Examples
    --------
    >>> import numpy as np
    >>> fast, slow = np.array([[0, 1, 1, 0]] * 4), np.array([[0, 2.5, 0, 0]] * 4)
    >>> columns = step_columns([fast, slow], global_batch_size=10)
    >>> columns["step_time_s"], columns["throughput_samples_per_s"]
    (2.5, 4.0)
    """
    num_steps = len(ranks[0])
    columns: dict[str, Any] = {"num_steps": num_steps}
    if num_steps == 0:
        return columns

    slowest = _slowest(ranks)
    step_time_s = float(slowest.mean())
    columns["step_time_s"] = step_time_s

    if num_steps >= 4 * cycle:
        columns |= interval_columns(cycle_means(slowest, cycle), step_time_s)

    columns["throughput_samples_per_s"] = global_batch_size / columns["step_time_s"]
    for phase in Phase:
        means = [float(steps[:, phase].mean()) for steps in ranks]
        share = sum(means) / len(means) / step_time_s
        columns[phase.column] = share * columns["step_time_s"]

    return columns


def _slowest(ranks: Sequence[Seconds]) -> npt.NDArray[np.float64]:
    slowest = max(ranks, key=lambda steps: float(steps.sum()))
    return np.asarray(slowest.sum(axis=1))


def later_columns_of(
    ranks: Sequence[Seconds], tally: StepTally, trial: Trial, cycle: int
) -> dict[str, Any]:
    """Return whether later steps of a long trial take another time, by column."""
    if not trial.is_long or tally.window_steps is None:
        return {}
    means = cycle_means(_slowest(ranks), cycle)
    return later_columns(
        means,
        tally.step - cycle * np.arange(len(means))[::-1],
        window_end=tally.window_steps,
        samples_per_step=trial.global_batch_size,
        samples_per_epoch=trial.measurement.samples_per_epoch,
    )


def device_columns(ranks: Sequence[RankReadings]) -> dict[str, Any]:
    """Return memory, utilisation and energy over the ranks' devices, by column."""
    peaks = [r.peak_memory_bytes for r in ranks if r.peak_memory_bytes is not None]
    sizes = [r.device_memory_bytes for r in ranks if r.device_memory_bytes is not None]
    shares = [r.utilization for r in ranks if r.utilization is not None]
    joules = [r.energy_j for r in ranks if r.energy_j is not None]
    watts = [r.power_w for r in ranks if r.power_w is not None]
    # A sum over some of the devices would be mistaken for the sum over all.
    is_whole = len(joules) == len(ranks)

    return {
        "gpu_memory_peak_bytes": max(peaks, default=None),
        "gpu_memory_bytes": min(sizes, default=None),
        "gpu_utilization": sum(shares) / len(shares) if shares else None,
        "energy_j": sum(joules) if is_whole else None,
        "energy_source": "measured" if is_whole else None,
        "device_power_w": sum(watts) / len(ranks) if len(watts) == len(ranks) else None,
    }


def target_columns(
    tally: StepTally, trial: Trial, default_metric: str
) -> dict[str, Any]:
    """Return the results of the evaluations by column; empty without evaluations."""
    if trial.kind is TrialKind.THROUGHPUT:
        return {}
    target = trial.measurement.target
    metric = target.metric if target else default_metric
    # Where training diverged after them, they are those of no model.
    last = tally.metrics.get(metric)
    is_lost = tally.ending is Ending.DIVERGED or not math.isfinite(last or 0.0)
    metrics = dict.fromkeys(tally.metrics) if is_lost else tally.metrics
    step = tally.target_step

    return {
        "evaluation_s": tally.evaluation_s,
        "evaluation_interval_samples": trial.measurement.evaluate_every_samples,
        "diverged": is_lost,
        "final_metric": None if is_lost else last,
        "final_metrics": encode_json(metrics).decode() if metrics else None,
        "reached_target": step is not None if target else None,
        "steps_to_target": step,
        "samples_to_target": None if step is None else step * trial.global_batch_size,
        "time_to_target_s": tally.target_s,
    }


def conclude(
    tally: StepTally, trial: Trial, measurements: Mapping[str, Any]
) -> AttemptResult:
    """Return the result of an attempt whose ranks all ended without an error."""
    outcome, reason = Outcome.COMPLETED, ""
    target = trial.measurement.target

    at = f"after {tally.step * trial.global_batch_size} samples"
    if tally.ending is Ending.STOPPED:
        # Where ScaleLab has sent the signal, it knows a better reason.
        outcome, reason = Outcome.PREEMPTED, f"Ended by SIGTERM at step {tally.step}."
    elif tally.ending is Ending.OUT_OF_TIME:
        outcome = Outcome.PREEMPTED
        reason = f"Ended at step {tally.step}: the walltime of its nodes is nearly up."
    elif tally.pruned is not None:
        outcome, reason = Outcome.PRUNED, tally.pruned
    elif tally.ending is Ending.DIVERGED:
        outcome = Outcome.TARGET_NOT_REACHED
        reason = f"Diverged: the training loss was no longer finite {at}."
    elif trial.kind is not TrialKind.THROUGHPUT and target and not tally.target_step:
        last = tally.metrics.get(target.metric, float("nan"))
        outcome = Outcome.TARGET_NOT_REACHED
        reason = f"{target} was not reached {at}; the last value is {last:.4g}."

    known = {name: value for name, value in measurements.items() if value is not None}
    return AttemptResult(outcome=outcome, reason=reason, measurements=known)


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
    settled = [rank.steps[tally.num_unsettled :] for rank in ranks]
    measurements = {
        "device_name": device_name(context.device),
        "emulated": workload.emulated,
        "num_samples": tally.step * global_batch_size,
        "versions": versions(),
        **step_columns(settled, global_batch_size, cycle=cycle),
        **later_columns_of(settled, tally, trial, cycle),
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
            f"{spec.trial.workload!r} is a command, and ranks run workloads only.",
            code="command_in_rank",
        )

    workload, options = workload_of(program, spec.trial)
    factor = slow_rank_factor(spec.trial.options)
    idle = [f"options.slow_rank_factor={factor:g}"] if factor > 1 else []

    idle += ["compile=True"] if options.compile else []
    if idle and workload.engine is not None:
        raise SpecError(
            f"{idle[0]} has no effect on workload {program.name!r}, which computes "
            "its steps by itself. Leave it out.",
            code="option_without_effect",
        )

    return workload, options
