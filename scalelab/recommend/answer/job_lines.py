"""The recommended job: its time limit, and the shell lines of its batch script."""

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from statistics import NormalDist
from typing import Self

from scalelab.errors import SpecError
from scalelab.experiment.command_values import placeholder_values, readable_variables
from scalelab.experiment.hidden import is_hidden
from scalelab.experiment.keys import PROBED
from scalelab.experiment.program import INSIDE
from scalelab.experiment.rates import NO_WARMUP, RateSetting
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import PROGRAM, LearningRate, Trial, TrialKind
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.layout import Layout
from scalelab.inputs.numerals import Interval, duration, percent
from scalelab.inputs.placeholders import (
    PROCESS_PLACEHOLDERS,
    fill_placeholders,
    placeholders_in,
)
from scalelab.inputs.problems import Option
from scalelab.kinds.batch_systems import BatchSystem
from scalelab.kinds.launchers import RecommendedJob
from scalelab.kinds.strategies import strategy_of
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.site.batch_site import BatchSite
from scalelab.site.node_settings import DeviceType

_UNMEASURED = 0.1  # of the rest: checkpoints, and what no trial does
_LEAST_S = 600.0
_GRAIN_S = 300.0
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_UNKNOWN = "is not set. Export it, and submit this job so that it is passed on."


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTime:
    """How long the recommended job may take."""

    # Not exceeded with the confidence; infinite where no upper end is known
    time_s: float
    confidence: float
    start_up_s: float  # of it
    # The longest time that a job may take on the site; None: not known
    walltime_s: float | None

    @classmethod
    def of(cls, answer: Recommendation, walltime_s: float | None) -> Self:
        """Return the time of the chosen row."""
        known = [f.values for f in answer.facts if f.kind == "times_contain"]
        return cls(
            time_s=_quantile(answer.chosen.time_s, answer.interval, answer.confidence),
            confidence=answer.confidence,
            start_up_s=sum(values["beside_s"].get("start-up", 0) for values in known),
            walltime_s=walltime_s,
        )

    @property
    def whole_s(self) -> float:
        """Time of the whole training in one job, in multiples of five minutes."""
        if not math.isfinite(self.time_s):
            return self.time_s
        whole_s = (1 + _UNMEASURED) * self.time_s
        return max(_LEAST_S, math.ceil(whole_s / _GRAIN_S) * _GRAIN_S)

    @property
    def limit_s(self) -> float | None:
        """Time limit of a job; None: the site's or the queue's."""
        limit_s = min(self.whole_s, self.walltime_s or math.inf)
        return limit_s if math.isfinite(limit_s) else None

    @property
    def num_jobs(self) -> int:
        """Jobs that the training takes, one after the other."""
        if self.walltime_s is None or not self.walltime_s < self.whole_s < math.inf:
            return 1
        useful_s = max(self.walltime_s - self.start_up_s, self.walltime_s / 2)
        return math.ceil((self.whole_s - self.start_up_s) / useful_s)

    def in_words(self) -> str:
        """Say what the limit holds."""
        if not math.isfinite(self.time_s):
            return "No upper end of the training's time is known: see the time limit."
        holds = f"{duration(self.time_s)} ({percent(self.confidence)})"
        least = f"; it is {duration(_LEAST_S)} at least"
        return (
            f"The time limit holds {holds} and a tenth more for the rest"
            f"{least if self.limit_s == _LEAST_S else ''}."
        )


def _quantile(time_s: Interval, mass: float, confidence: float) -> float:
    """Return the time that is not exceeded with a confidence.

    The logarithm of the time is taken for normal beyond its median.
    """
    normal = NormalDist()
    end, asked = normal.inv_cdf((1 + mass) / 2), normal.inv_cdf(confidence)
    if not math.isfinite(time_s.hi):
        return math.inf
    if asked <= 0 or time_s.hi <= time_s.value:
        return time_s.value
    return float(time_s.value * (time_s.hi / time_s.value) ** (asked / end))


def job_lines(
    experiment: Experiment,
    site: BatchSite,
    answer: Recommendation,
    time: JobTime,
    recordings: Path | None = None,
) -> list[str]:
    """Return the lines that run the experiment's command as recommended.

    Its launcher's row writes the line that starts it. Placeholders that only a sweep
    knows become the job's own: ``{trial_dir}`` is the directory the job is submitted
    from. A built-in workload has no command; the line is then a comment that says what
    to start. Where there is a folder for ``recordings``, the probe writes below it what
    it sees of the job's steps.
    """
    row, system = answer.chosen, site.batch_system
    if row.world_size % row.num_nodes:
        raise SpecError(
            f"{row.world_size} ranks on {row.num_nodes} nodes are uneven ("
            f"{row.allocation}); a job script starts as many on each.",
            f"Ask for multiples of {row.num_nodes}: {Option('gpus')}.",
            code="uneven_nodes",
        )

    head = [f"# {time.in_words()}", *_chain(system, time)]
    if not answer.meets_constraints and answer.limits:
        missed = " and ".join(answer.limits)
        head.insert(0, f"# Nothing meets {missed}; this is the closest.")

    if experiment.workload:
        return [
            *head,
            f"# Start your training here: {row.world_size} ranks, "
            f"local batch {row.batch.local_batch_size}, "
            f"{row.batch.gradient_accumulation_steps} accumulation steps.",
        ]

    trial = recommended_trial(experiment, answer)
    experiment = experiment.by_program()[trial.program]
    launcher = experiment.launcher.row()
    launcher.check_nodes(row.num_nodes, "the recommended job")
    on_node = row.world_size // row.num_nodes
    values = placeholder_values(trial, devices_on_node=on_node, directory=".")
    exported, of_process = _environment(experiment, site, answer, values)
    before = [f"{name}={text}" for name, text in of_process.items()]
    command = shlex.split(experiment.command or "")
    argv = [fill_placeholders(word, values) for word in command]
    # jobs that share a node meet at different ports
    number = f"${{{system.job_variable}%%[!0-9]*}}"
    job = RecommendedJob(
        argv=("env", *before, *argv) if before else tuple(argv),
        num_nodes=row.num_nodes,
        devices_per_node=on_node,
        on_each_node=_on_each_node(site, row.num_nodes, row.world_size),
        on_each_device=system.on_each_device(row.num_nodes, on_node),
        first_host=system.first_host(),
        hosts=system.hosts(),
        port=f"$(({_FIRST_PORT} + {number} % {_NUM_PORTS}))",
    )

    hidden = [name for name, value in experiment.env.items() if is_hidden(value)]
    unknown = [*experiment.env_from, *hidden]
    probe: list[str] = []
    if recordings is not None and experiment.probe == PROBED:
        warmup_steps = trial.measurement.warmup_steps
        probe = _recording(recordings, number, warmup_steps)
    prepared = _prepared(site, row.num_nodes, exported, unknown, probe)
    return [*head, *prepared, *launcher.job_lines(job)]


def recommended_trial(experiment: Experiment, answer: Recommendation) -> Trial:
    """Return the trial that would measure the recommended configuration."""
    row = answer.chosen
    held: Mapping[str, Scalar] = {**answer.held, **row.settings}

    def value(name: str, listed: Sequence[Scalar]) -> Scalar:
        known = str(held.get(name, listed[0]))
        return next((entry for entry in listed if str(entry) == known), listed[0])

    programs = list(experiment.by_program())
    program = next((n for n in programs if n == held.get(PROGRAM)), programs[0])
    parallelism = str(value("parallelism", experiment.parallelism))
    options = {
        name: value(name, value_of_axis)
        for name, value_of_axis in experiment.axes.items()
    }
    in_flight = strategy_of(parallelism).steps_in_flight(row.world_size, options)

    return Trial(
        kind=TrialKind.THROUGHPUT,
        workload=experiment.workload_name,
        allocation=Allocation.packed(
            row.world_size, devices_on_node=-(-row.world_size // row.num_nodes)
        ),
        local_batch_size=row.batch.local_batch_size,
        gradient_accumulation_steps=row.batch.gradient_accumulation_steps,
        learning_rate=_rate(experiment, answer, in_flight),
        node_group=answer.node_group or None,
        parallelism=parallelism,
        precision=str(value("precision", experiment.precision)),
        seed=experiment.seed[0],
        options=options,
        layout=_layout(experiment, held),
        program=program,
    )


def _layout(experiment: Experiment, held: Mapping[str, Scalar]) -> Layout | None:
    if experiment.layout is None:
        return None

    def num_agreeing(layout: Layout) -> int:
        return sum(str(held.get(name)) == str(n) for name, n in layout.degrees.items())

    return max(experiment.layout.layouts(), key=num_agreeing)


def _rate(
    experiment: Experiment, answer: Recommendation, steps_in_flight: int
) -> LearningRate | None:
    job, advised = experiment.job, answer.learning_rate
    settings = {**answer.held, **answer.chosen.settings}

    def num_agreeing(rate: RateSetting) -> int:
        return sum(
            (
                advised is not None and rate.rule == advised.rule,
                rate.base == settings.get("base_learning_rate"),
                str(rate.warmup or NO_WARMUP) == settings.get("warmup"),
            )
        )

    known = [rate for rate in experiment.rate_settings if rate is not None]
    if not known:
        return None

    return max(known, key=num_agreeing).at(
        answer.chosen.batch.global_batch_size,
        job.samples_per_epoch if job else None,
        steps_in_flight=steps_in_flight,
    )


def _environment(
    experiment: Experiment,
    site: BatchSite,
    answer: Recommendation,
    values: Mapping[str, object],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that all processes share, and those that each has its own.

    The latter hold placeholders of a single process.
    """
    variables = readable_variables(experiment)
    texts = {variable: f"{{{variables[variable]}}}" for variable in experiment.uses}
    texts |= {
        name: text_of
        for name, text_of in experiment.env.items()
        if not is_hidden(text_of)
    }
    threads = {**answer.held, **answer.chosen.settings}.get("threads_per_rank")

    asked = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    if site.interface:
        asked["GLOO_SOCKET_IFNAME"] = asked["NCCL_SOCKET_IFNAME"] = site.interface

    asked["SCALELAB_METRICS"] = "/dev/null"
    asked |= {name: fill_placeholders(text, values) for name, text in texts.items()}
    of_process = {
        name: text
        for name, text in asked.items()
        if {*placeholders_in(text)} & PROCESS_PLACEHOLDERS.keys()
    }
    return {n: text for n, text in asked.items() if n not in of_process}, of_process


def _recording(folder: Path, job_number: str, warmup_steps: int) -> list[str]:
    """Return the lines that have the probe see the steps of the job's processes."""
    streams = f'{shlex.quote(str(folder))}/"{job_number}"/steps'
    behind = '"${PYTHONPATH:+:$PYTHONPATH}"'
    return [
        "# Records steps for `scalelab follow`; without these lines it runs as well",
        f"export SCALELAB_PROBE={streams}",
        f"export SCALELAB_PROBE_WARMUP={warmup_steps}",
        f"export PYTHONPATH={shlex.quote(str(INSIDE))}{behind}",
    ]


def _prepared(
    site: BatchSite,
    num_nodes: int,
    exported: Mapping[str, str],
    unknown: Sequence[str],
    probe: Sequence[str],
) -> Iterator[str]:
    system = site.batch_system
    python = PurePath(site.python or sys.executable)
    if line := system.to_submission_directory():
        yield line

    lines = [f"export {name}={shlex.quote(text)}" for name, text in exported.items()]
    lines += [f': "${{{name}:?{_UNKNOWN}}}"' for name in unknown]
    lines += probe
    if python.is_absolute():
        lines.insert(0, f"export PATH={shlex.quote(str(python.parent))}:$PATH")

    if num_nodes > 1 and not system.passes_environment:
        # Tasks on the nodes find nothing of what this script has exported.
        yield from ["prepare() {", *site.prologue, *lines, "}"]
    else:
        yield from lines


def _on_each_node(site: BatchSite, num_nodes: int, world_size: int) -> str:
    if num_nodes == 1:
        return ""
    system, cores = site.batch_system, site.cores_per_node
    if cores is None and site.device_type is DeviceType.CPU:
        cores = world_size // num_nodes  # a rank on each

    start = system.once_per_node(num_nodes, cores)
    if system.passes_environment:
        return start

    again = 'cd $(printf %q "$PWD"); $(declare -f prepare); prepare; exec \\"\\$@\\"'
    return f'{start} /bin/bash -c "{again}" bash'


def _chain(system: BatchSystem, time: JobTime) -> Iterator[str]:
    if time.num_jobs == 1:
        return
    yield from (
        f"# It takes {time.num_jobs} jobs, one after the other: each goes on from the",
        "# last checkpoint of the one before. Where no job runs yet, bash with this",
        "# script submits them all; when one ends well, those after it are dropped.",
    )
    submit = system.submit_after_failures()
    if not submit:
        return

    parts = " ".join(map(str, range(1, time.num_jobs + 1)))
    yield from (
        f'if [ -z "${{{system.job_variable}:-}}" ]; then',
        f"  for part in {parts}; do",
        f"    job=$({submit}) || exit",
        '    echo "Submitted job $part: $job"',
        "    jobs=$jobs:${job%%;*}",
        "  done",
        "  exit",
        "fi",
    )
