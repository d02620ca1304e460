"""The steps of a command as the probe has seen them, where its optimizer made them.

The probe also shows whether the ranks train together, by their parameters, gradients
and first batches, and whether the data loaders draw the samples that a trial asks for.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

from scalelab.errors import SpecError
from scalelab.experiment.trial import Trial, TrialKind
from scalelab.inputs.numerals import counted
from scalelab.kinds.strategies import strategy_of
from scalelab.launch.command.probe.samples import entered_share, samples_columns
from scalelab.launch.command.probe.streams import (
    Note,
    ProbedProcess,
    ProbedProcesses,
    Source,
)
from scalelab.launch.command.steps import StepLog
from scalelab.plan.first_check import (
    ALONE,
    INSIDE,
    NOT_WITNESSED,
    RANKS_APART,
    SAME_DATA,
    WRONG_BEYOND,
    factor,
)
from scalelab.reading.logs.lines import Report

# So many steps show which optimizer, and which loader, the training is of.
_ENOUGH = 4
_ENOUGH_OF_OTHERS = 20  # where the first rank may have none, as it only serves others
# Ranks that differ before steps 1, 2, 4 and so on up to one of these share nothing.
_COMPARED_FROM, _COMPARED_UNTIL = 8, 16
# The notes of a rank on its optimizer, by the number of the step that came next.
_Notes = dict[int, Note]


def ranks_witness(
    trial: Trial,
    processes: Sequence[ProbedProcess],
    *,
    optimizer: int,
    loader: int,
) -> str | None:
    """Return what the probe says of the ranks; None where it cannot judge them.

    ``inside``: they train together, on samples of their own. ``same_data``: they hold
    the same parameters, and began with the same batch. ``alone``: before each step that
    was looked at, their parameters and their gradients differ. ``not_witnessed``: one
    sign says that they train apart.

    Raises
    ------
    SpecError
        Each trains alone; or all see the same samples, and a target is to be reached.
    """
    if (compared := _compared(trial, processes, optimizer)) is None:
        return None
    ranks, first, last = compared
    if not _are_equal(ranks, last, "parameters"):
        if _are_equal(ranks, last, "gradients") or _may_exchange(ranks, first, last):
            return ALONE if _share_nothing(ranks) else NOT_WITNESSED
        raise SpecError(
            f"{counted(len(processes), 'rank')} joined a process group, and each "
            f"trains alone: before step {last} their parameters and their gradients "
            "differ, and they have exchanged nothing since step 1. Wrap the model in "
            "torch.nn.parallel.DistributedDataParallel, or let the program average its "
            "gradients. Where it averages weights now and then, write parallelism: "
            "local_sgd.",
            code="ranks_alone",
        )

    batches = {
        process.loaders.get(loader, {}).get("first_batch") for process in processes
    }
    if None in batches:
        return None
    if len(batches) > 1:
        return INSIDE
    if trial.kind is TrialKind.THROUGHPUT:
        return SAME_DATA

    raise SpecError(
        f"all {counted(len(processes), 'rank')} began with the same batch, and before "
        f"step {last} hold the same parameters: every rank sees the same samples, and "
        "what they reach one rank would reach as soon. Give the data loader a sampler, "
        "torch.utils.data.DistributedSampler, or a seed for each rank.",
        code="same_samples",
    )


def check_group(trial: Trial, note: Note) -> None:
    """Refuse a process group of another size than the trial has devices.

    With a layout there may also be one rank for each replica, which drives several;
    servers may be members, too.

    Raises
    ------
    SpecError
        The group has more ranks, or fewer.
    """
    size = note.get("world_size")
    if not strategy_of(trial.parallelism).is_synchronous or size in (
        None,
        trial.world_size,
        trial.layout and trial.data_parallel_size,
    ):
        return

    raise SpecError(
        f"the program's process group has {counted(size, 'rank')}, and this trial has "
        f"{counted(trial.world_size, 'device')}, so its row would tell of devices that "
        "were not used, or were shared. Let the command start a rank for each device: "
        "torchrun --nnodes {num_nodes} --nproc-per-node {gpus_per_node}, or accelerate "
        "launch --num_processes {world_size}.",
        code="other_world_size",
    )


def _compared(
    trial: Trial, processes: Sequence[ProbedProcess], optimizer: int
) -> tuple[list[_Notes], int, int] | None:
    """Return the notes of ranks that can be compared, before a first and a last step.

    Each must hold the whole model, which has changed since the first.
    """
    strategy = strategy_of(trial.parallelism)
    is_whole = strategy.is_synchronous and not strategy.shards_state
    if trial.layout is not None or not is_whole or len(processes) < 2:
        return None

    ranks = [
        {
            at: note
            for at, note in process.notes[optimizer].items()
            if "parameters" in note
        }
        for process in processes
    ]

    common = set.intersection(*map(set, ranks))
    if len(common) < 2 or not all(map(_is_plain, ranks)):
        return None

    first, last = min(common), max(common)
    has_changed = ranks[0][first]["parameters"] != ranks[0][last]["parameters"]
    are_alike = has_changed and _are_equal(ranks, last, "shapes")
    noted = [{at: rank[at] for at in sorted(common)} for rank in ranks]
    return (noted, first, last) if are_alike else None


def _is_plain(rank: _Notes) -> bool:
    return not any(note["engines"] or note["is_split"] for note in rank.values())


def _are_equal(ranks: Sequence[_Notes], at: int, name: str) -> bool:
    return all(rank[at][name] == ranks[0][at][name] for rank in ranks)


def _share_nothing(ranks: Sequence[_Notes]) -> bool:
    """Tell whether ranks differ before each of the first steps that all have noted.

    They may begin with the same parameters.
    """
    steps = [at for at in ranks[0] if at <= _COMPARED_UNTIL]
    looks = {*product(steps, ("parameters", "gradients"))} - {(1, "parameters")}
    return _COMPARED_FROM <= max(steps) and all(
        _are_apart(ranks, at, name) for at, name in looks
    )


def _are_apart(ranks: Sequence[_Notes], at: int, name: str) -> bool:
    """Tell whether most hashes differ: experts of a model are each of one rank."""
    places = [*zip(*(rank[at][name] for rank in ranks), strict=True)]
    return 2 * sum(len({*hashes}) > 1 for hashes in places) > len(places)


def _may_exchange(ranks: Sequence[_Notes], first: int, last: int) -> bool:
    """Tell whether a collective operation was counted between two steps, or none is."""
    counts = [
        (rank[first].get("exchanges"), rank[last].get("exchanges")) for rank in ranks
    ]
    return any(None in pair or pair[0] != pair[1] for pair in counts)


class ProbedSteps:
    """The steps of the first rank's training, and what else the probe has seen.

    A process may have several optimizers. A step is one of the optimizer whose steps
    take as many batches as the trial asks for, of several such the one that steps most.
    Batches that come from another loader than the training's, or are drawn without
    gradients, are of an evaluation. ``log`` is None until enough steps have shown that;
    then ``leader`` is the process of the first rank, ``optimizer`` the index of its
    optimizer, and ``training`` what its batches come from.
    """

    def __init__(
        self,
        folder: Path,
        trial: Trial,
        *,
        num_processes: int,
        tokens_per_sample: int | None = None,
    ) -> None:
        self._trial = trial
        self._num_processes = num_processes  # that are started on the first node
        self._tokens_per_sample = tokens_per_sample
        self.folder = folder
        self._processes = ProbedProcesses(folder)
        self.log: StepLog | None = None
        self.leader = ProbedProcess(folder)
        self.optimizer = 0
        self.training = set[Source]()
        self._num_taken = 0
        self._held: list[Report] = []  # printed before the log began

    def take(
        self,
        printed: Sequence[Report],
        now_s: float,
        *,
        has_changed: bool,
        is_over: bool,
    ) -> None:
        """Take in further steps, and what the program has printed in the meantime.

        The folder is looked into only where it ``has_changed``, and in the end.

        Raises
        ------
        SpecError
            A process has started anew after it had made steps.
        """
        if has_changed:
            self._refuse_new_starts()
        if self.log is not None:
            self.leader.read()
        elif has_changed or is_over:
            self._look_for_steps(is_over=is_over)

        self._held += printed
        if self.log is None:
            return
        if self.log.last_step is None:  # what was printed meanwhile belongs to these
            self.log.take([*self._new_reports(self.log)], now_s)

        self.log.take([replace(report, step=None) for report in self._held], now_s)
        self._held.clear()
        self.log.take([*self._new_reports(self.log)], now_s)

    def _refuse_new_starts(self) -> None:
        """Refuse a process that has two streams, as ``os.execv`` leaves behind."""
        starts = Counter(
            (path.parent, path.name.partition("-")[0])
            for path in self.folder.glob("*/*.probe")
        )
        if max(starts.values(), default=1) > 1:
            raise SpecError(
                f"after {counted(self.num_steps, 'step')} the program has replaced "
                "itself, as os.execv does: what comes then is another training, with a "
                "start-up of its own. Let it train on in one process for as many steps "
                "as measure.warmup_steps and measure.steps ask.",
                code="replaced_itself",
            )

    @property
    def processes(self) -> Collection[ProbedProcess]:
        """All processes whose optimizer has stepped."""
        return self._processes.values()

    @property
    def num_steps(self) -> int:
        """Steps seen so far, of the optimizer that has most."""
        return max(map(_most_steps, self._processes.values()), default=0)

    @property
    def num_stepping(self) -> int:
        """Processes that have made a step."""
        return sum(any(process.steps.values()) for process in self._processes.values())

    def fewer_batches(self) -> str:
        """Say that one rank draws a batch less than another in a pass; empty: none.

        A rank whose batches end first leaves the others waiting.
        """
        self._processes.read()
        lengths = {
            process.note["rank"]: length
            for process in self._processes.values()
            for loader, with_gradients in self._sources_of_training(process)
            if with_gradients
            and (length := process.loaders.get(loader, {}).get("num_indices"))
        }
        ranks = sorted(lengths, key=lengths.__getitem__)
        apart = lengths[ranks[-1]] - lengths[ranks[0]] if ranks else 0
        if apart < self._trial.local_batch_size:
            return ""

        return (
            f"The data loader of rank {ranks[0]} has {lengths[ranks[0]]:,} samples in "
            f"a pass, and that of rank {ranks[-1]} has {lengths[ranks[-1]]:,}: the one "
            "ends first, and the others wait for it. Give all ranks as many, as "
            "torch.utils.data.DistributedSampler does"
        )

    def columns(self) -> dict[str, Any]:
        """Return what the probe confirms of the measured steps, by column.

        Raises
        ------
        SpecError
            The samples of a step are not those that were asked for, or the ranks do not
            train together.
        """
        self._processes.read()
        trial, leader, optimizer = self._trial, self.leader, self.optimizer
        check_group(trial, leader.note)
        warmup_steps = trial.measurement.warmup_steps
        trained = [
            process
            for process in self._processes.values()
            if len(process.steps[optimizer]) > 1
        ]
        local = [process for process in trained if process.node == leader.node]
        self.training = self._sources_of_training(leader)
        loader, _ = min(self._sources_that_fit(leader), default=(-1, True))
        columns: dict[str, Any] = {"measured_by": INSIDE}
        columns |= self._samples_columns(trained, local)
        if len(trained) <= trial.world_size:
            columns["ranks_witness"] = ranks_witness(
                trial, trained, optimizer=optimizer, loader=loader
            )
            if self._has_stragglers(local):
                columns["validity"] = [RANKS_APART]

        if self.training and (
            waited := leader.draws_of_steps(optimizer, self.training, warmup_steps)
        ):
            columns["data_wait_s"] = fmean(draws.waited_s for draws in waited)

        return columns

    def _samples_columns(
        self, trained: Sequence[ProbedProcess], local: Sequence[ProbedProcess]
    ) -> dict[str, Any]:
        """Return the samples of a step; of all nodes, where all streams are here.

        Each process numbers its loaders in the order in which it draws from them first.
        """
        assert self.log is not None
        trial, optimizer = self._trial, self.optimizer
        num_nodes = len({process.node for process in trained})
        # A rank that waits for no other may be late.
        num_steps = len(self.leader.steps[optimizer])
        local = [p for p in local if 2 * len(p.steps[optimizer]) >= num_steps]
        on_node = max(len(local), self._num_processes)
        seen, scale = trained, 1.0
        if num_nodes < trial.allocation.num_nodes or len(local) < on_node:
            seen, scale = local, on_node / len(local)
            scale *= trial.world_size / trial.allocation.devices_per_node[0]

        sources = [self._sources_that_fit(process) for process in seen]
        warmup_steps = self.log.intervals.warmup_steps
        found = samples_columns(
            trial,
            [
                process.draws_of_steps(optimizer, own_sources, warmup_steps)
                for process, own_sources in zip(seen, sources, strict=True)
            ],
            scale=scale,
            skipped=fmean(step.num_skipped for step in self.leader.steps[optimizer]),
            num_loaders=len({loader for loader, _ in self.training}),
            entered=entered_share(
                self.leader, optimizer, self._sources_that_fit(self.leader)
            ),
        )
        self.log.samples_per_step = found.get(
            "samples_per_step", trial.global_batch_size
        )
        notes = [
            process.loaders.get(min(own_sources, default=(-1, True))[0], {})
            for process, own_sources in zip(seen, sources, strict=True)
        ]
        lengths: list[Any] = [note.get("num_indices") for note in notes]
        if found and all(lengths):
            found |= {
                "samples_of_pass": scale * sum(lengths),
                "samples_of_dataset": notes[0]["data"][1],
            }

        return found

    def _sources_that_fit(self, process: ProbedProcess) -> set[Source]:
        """Return the loaders of the training whose samples are closest to those asked.

        Of several that are drawn from side by side, one may have them, or all together.
        """
        trial, training = self._trial, self._sources_of_training(process)
        asked = trial.local_batch_size * trial.gradient_accumulation_steps

        def distance(sources: set[Source]) -> float:
            drawn = process.draws_of_steps(self.optimizer, sources, 1)
            return abs(
                fmean([draws.samples or 0.0 for draws in drawn] or [0.0]) - asked
            )

        alone = [{source} for source in sorted(training)]
        return min([*alone, training], key=distance)

    def _has_stragglers(self, processes: Sequence[ProbedProcess]) -> bool:
        """Tell whether a rank of this node made far fewer steps in the same time."""
        if (
            self._trial.layout
            or not strategy_of(self._trial.parallelism).is_synchronous
        ):
            return False

        if len(processes) < self._num_processes:
            return True

        leading = self.leader.steps[self.optimizer]
        began_s, ended_s = leading[0].at_s, leading[-1].at_s
        made = [
            sum(began_s <= s.at_s <= ended_s for s in process.steps[self.optimizer])
            for process in processes
        ]
        return min(made) * WRONG_BEYOND < len(leading) - 1

    def _look_for_steps(self, *, is_over: bool) -> None:
        self._processes.read()
        stepping = [
            process
            for process in self._processes.values()
            if any(process.steps.values())
        ]
        if not stepping:
            return

        leader = min(
            stepping, key=lambda found: (found.note["rank"] or 0, -_most_steps(found))
        )
        awaited = _ENOUGH_OF_OTHERS if leader.note["rank"] else _ENOUGH
        if _most_steps(leader) < awaited and not is_over:
            return

        self.leader = leader
        self.optimizer = self._leading_optimizer()
        self.training = self._sources_of_training(self.leader)
        self.log = StepLog(
            self._trial,
            may_repeat=False,
            sees_steps=True,
            tokens_per_sample=self._tokens_per_sample,
        )

    def _leading_optimizer(self) -> int:
        asked = self._trial.gradient_accumulation_steps

        def distance(optimizer: int) -> tuple[float, int]:
            steps = self.leader.steps[optimizer]
            drawn = self.leader.draws_between(steps[0], steps[-1])
            batches = sum(draws.batches for draws in drawn if draws.source[1])
            rate = batches / max(1, steps[-1].number - steps[0].number)
            return round(factor(rate, asked), 1) if rate else 1.0, -len(steps)

        return min(sorted(self.leader.steps), key=distance)

    def _sources_of_training(self, process: ProbedProcess) -> set[Source]:
        steps = process.steps[self.optimizer]
        drawn = Counter(
            source
            for before, step in pairwise(steps)
            for source in {d.source for d in process.draws_between(before, step)}
        )
        most = max(drawn.values(), default=0)
        return {source for source, count in drawn.items() if count * 2 >= most}

    def _new_reports(self, log: StepLog) -> Iterator[Report]:
        steps = self.leader.steps[self.optimizer]
        for at in range(self._num_taken, len(steps)):
            before = steps[at - 1] if at else None
            drawn = self.leader.draws_between(before, steps[at])
            if self._are_of_evaluation({draws.source for draws in drawn}):
                log.names_evaluations = True
                yield Report(step=None, is_evaluation=True)
            yield Report(step=steps[at].number, t=steps[at].at_s)
        self._num_taken = len(steps)

    def _are_of_evaluation(self, sources: set[Source]) -> bool:
        others = sources - self.training
        # A training may go on with another loader alone.
        has_both = bool(others) and bool(sources & self.training)
        return has_both or any(not with_gradients for _, with_gradients in others)


def _most_steps(process: ProbedProcess) -> int:
    return max(map(len, process.steps.values()), default=0)
