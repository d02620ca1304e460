"""What a sweep would run, and what it would cost, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from scalelab.inputs.guessed import Guided, by_guess
from scalelab.inputs.lines import aligned
from scalelab.inputs.numerals import counted, duration
from scalelab.inputs.problems import Option
from scalelab.kinds.sources import SOURCES

if TYPE_CHECKING:
    import pandas as pd

    from scalelab.experiment.trial import Trial
    from scalelab.running.sweep import Sweep

HEADER = (
    *("trials", "kind", "devices", "allocation"),
    *("global batch", "= local x ranks x acc."),
)
IS_TEXT = (False, True, False, True, False, True)
MAX_LEFT_OUT_SHOWN = 5
_UNSAID = {"base rate", "warm-up"}  # where every trial has the same


class DryRun(Guided):
    """A sweep that was read and checked, and not run; it shows as ``scalelab plan``."""

    _instead: ClassVar[Mapping[str, str]] = by_guess(
        {
            "dry_run.trials, a frame": "df frame to_frame plan table rows",
            "len(dry_run)": "num_trials count size",
            "dry_run.gpu_hours": "cost hours device_hours estimate time price",
            "scalelab.sweep(...)": "run start execute sweep",
        }
    )

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep

    def __len__(self) -> int:
        return len(self._sweep.plan.trials)

    @property
    def trials(self) -> pd.DataFrame:
        """A row per trial that the experiment asks for, its settings as columns."""
        import pandas as pd

        return pd.DataFrame(map(_columns, self._sweep.plan.trials))

    @property
    def num_remaining(self) -> int | None:
        """Trials that are not done yet; None: the source of trials does not say."""
        return self._sweep.num_remaining

    @property
    def gpu_hours(self) -> float | None:
        """Device-hours to come; None before a trial of each kind has ended."""
        return self._sweep.gpu_hours

    def __repr__(self) -> str:
        parts = (_trials, _notes, _left_out, _cost, _job_scripts)
        blocks = ("\n".join(part(self._sweep)) for part in parts)
        return "\n\n".join(filter(None, blocks))


def _columns(trial: Trial) -> dict[str, Any]:
    return {
        "trial_id": trial.trial_id,
        "kind": _kind_of(trial),
        "world_size": trial.world_size,
        "num_nodes": trial.allocation.num_nodes,
        "local_batch_size": trial.local_batch_size,
        "gradient_accumulation_steps": trial.gradient_accumulation_steps,
        "global_batch_size": trial.global_batch_size,
        **_settings(trial),
        "seed": trial.seed,
        "repeat": trial.repeat,
    }


def _trials(asked: Sweep) -> Iterator[str]:
    planned = asked.plan.trials
    what = counted(len(planned), "trial")
    chosen = [*asked.source.describe()]

    if not asked.is_planned:
        name = asked.experiment.source.name
        what = f"source={name} chooses which trials run, of {what} or others"
    if chosen:
        what = f"trials of source={asked.experiment.source.name}"

    yield f"{asked.experiment.name} on site {asked.site.name}: {what}"
    yield from chosen
    if SOURCES[asked.experiment.source.name].is_adaptive:
        yield "The candidates, and how many trials of each the whole grid would have:"
    yield ""
    varied = [name for name, values in _axes(planned).items() if len(values) > 1]
    counts = Counter(_row(trial, varied) for trial in planned)  # of seeds and repeats
    rows = [(str(count), *row) for row, count in counts.items()]
    left = (*IS_TEXT, *(True for _ in varied))
    yield from aligned([(*HEADER, *varied), *rows], left=left)


def _row(trial: Trial, varied: Sequence[str]) -> tuple[str, ...]:
    return (
        _kind_of(trial),
        str(trial.world_size),
        " ".join(filter(None, (str(trial.allocation), trial.node_group))),
        f"{trial.global_batch_size:,}",
        f"{trial.local_batch_size:,} x {trial.data_parallel_size} "
        f"x {trial.gradient_accumulation_steps}",
        *(_settings(trial).get(name, "") for name in varied),
    )


def _kind_of(trial: Trial) -> str:
    return (
        "canary" if trial.is_canary else "long" if trial.is_long else trial.kind.value
    )


def _settings(trial: Trial) -> dict[str, str]:
    # Those other than devices and batch, by name.
    settings = {
        "precision": trial.precision,
        "parallelism": trial.parallelism,
        **{name: str(value) for name, value in trial.further_axes.items()},
    }
    if (rate := trial.learning_rate) is None:
        return settings
    if rate.rule != "none":
        settings["LR rule"] = rate.rule

    return {**settings, "base rate": f"{rate.base:g}", "warm-up": rate.warmup or "none"}


def _axes(planned: Iterable[Trial]) -> dict[str, set[str]]:
    settings = [_settings(trial) for trial in planned]
    names = dict.fromkeys(name for setting in settings for name in setting)
    return {name: {setting.get(name, "") for setting in settings} for name in names}


def _notes(asked: Sweep) -> Iterator[str]:
    planned = asked.plan.trials
    axes = _axes(planned).items()
    tuned = asked.experiment.tune.keys() | _UNSAID

    same = [f"{n} {value}" for n, (value, *more) in axes if not more and n not in tuned]
    if same:
        yield f"Every trial: {', '.join(same)}."
    if asked.crowding:
        yield asked.crowding

    yield from _further(asked)
    groups = [name for name in asked.site.groups if name is not None]
    if groups and asked.experiment.node_group is None:
        yield (
            f"The experiment names no node_group: trials run on {groups[0]}, the first "
            f"of {', '.join(groups)}."
        )

    if asked.plan.assumes_local_batch:
        yield (
            "local_batch_size: auto is determined first, on one device; the table "
            "assumes the largest size that is tried."
        )


def _further(asked: Sweep) -> Iterator[str]:
    planned = asked.plan.trials
    if any(trial.is_canary for trial in planned):
        yield (
            "A canary is the cheapest trial once more: first, after every "
            f"{asked.experiment.measure.canary_every} trials, and last. It shows "
            "whether the machine changes meanwhile; measure.canary_every: 0 leaves it "
            "out."
        )

    lengths = [trial.measurement.least_s for trial in planned if trial.is_long]
    if least_s := max(filter(None, lengths), default=None):
        yield (
            "A long trial is the widest of its program once more, last, with at least "
            f"{duration(least_s)} of steps. It shows whether later steps take another "
            "time; measure.long_trial: none leaves it out."
        )


def _left_out(asked: Sweep) -> Iterator[str]:
    if left_out := asked.plan.left_out:
        yield f"Left out, {counted(len(left_out), 'combination')}:"
        yield from (f"  {reason}" for reason in left_out[:MAX_LEFT_OUT_SHOWN])


def _cost(asked: Sweep) -> Iterator[str]:
    from scalelab.session.sweep_cost import to_come

    for change in asked.changes:
        yield f"Changed since {asked.directory}: {change}."
    if asked.changes and asked.has_measurements:
        accepting = Option("accept_changes", True)
        yield f"Give the experiment another name, or sweep with {accepting}."

    left = asked.num_remaining
    if asked.num_finished:
        to_run = "" if left is None else f", {left:,} to run"
        done = f"{counted(asked.num_finished, 'trial')} done"
        yield f"In {asked.directory}: {done}{to_run}."

    yield from to_come(asked)
    if asked.experiment.job:
        yield f"Job to recommend for: {asked.experiment.job}"


def _job_scripts(asked: Sweep) -> Iterator[str]:
    from scalelab.records.control.job_list import CLUSTER_DIRECTORY
    from scalelab.site.batch_site import BatchSite
    from scalelab.site.job_script import node_job_script

    if not isinstance(asked.site, BatchSite):
        return

    largest: dict[str | None, int] = {}
    for trial in asked.plan.trials:
        group, num_nodes = trial.node_group, trial.allocation.num_nodes
        largest[group] = max(largest.get(group, 0), num_nodes)

    # Jobs are numbered through the run, whatever their nodes.
    for number, (group, num_nodes) in enumerate(largest.items(), start=1):
        site = asked.site.groups[group]
        is_one_job = site.provision == "one_job"
        node = f"{site.group} node" if site.group else "node"
        nodes = counted(num_nodes if is_one_job else site.nodes or num_nodes, node)
        how = f"{nodes} together" if is_one_job else f"up to {nodes} one by one"
        script = node_job_script(
            site,
            num_nodes if is_one_job else 1,
            job_name=f"{asked.directory.name}-{number}",
            directory=asked.directory / CLUSTER_DIRECTORY,
        )

        if number > 1:
            yield ""

        yield f"Job script, for {how}:"
        yield from (f"  {line}" for line in script.splitlines())
