"""A run that fits laws to its measurements and answers questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import ClusterError, SpecError, StoreError
from scalelab.inputs.document import Scalar
from scalelab.inputs.numerals import counted, device_words
from scalelab.inputs.problems import Call, Option, validated
from scalelab.kinds.resources import read_limits
from scalelab.records.afterwards.followed import followed_jobs
from scalelab.records.afterwards.waits import Waits, waits_state
from scalelab.records.store import HistoryFolder
from scalelab.session.arguments import (
    FitArguments,
    RecommendArguments,
    read_words,
    whole_job,
)
from scalelab.session.records import RunRecords
from scalelab.site.batch_site import BatchSite

if TYPE_CHECKING:
    from scalelab.laws.step_time.law import StepTimeLaw
    from scalelab.recommend.answer.facts import Fact
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.answer.recommendation import Recommendation
    from scalelab.recommend.knowledge import History
    from scalelab.recommend.money.prices import Quote
    from scalelab.recommend.question.candidates import UntoldByProgram
    from scalelab.report.html import Figures
    from scalelab.session.answer import Answer

# A value, values by device, or both as the command line has them
ByDevice = float | str | Mapping[str, float | str] | Sequence[str] | None
_QUICKLY_FIT = 200  # rows
_LAW = FitArguments.model_fields["law"].default


class RecommendingRun(RunRecords):
    """A run that fits laws to its measurements and answers questions."""

    def fit(
        self,
        law: str = "scalelab",
        *,
        learn_from: Sequence[str | Path] | str | Path = (),
        up_to: int | None = None,
    ) -> StepTimeLaw:
        """Return a law of step time fitted to the observations.

        Parameters
        ----------
        law
            A name of :data:`scalelab.LAWS`.
        learn_from
            Other runs to learn from, as in :meth:`recommend`.
        up_to
            Fit to rows of at most so many devices, to see what the law would have said
            of the others; default: to all.

        Raises
        ------
        SpecError
            If an argument is wrong.
        FitError
            If no row has a usable step time.
        """
        given = {"law": law, "learn_from": learn_from, "up_to": up_to}
        arguments = validated(FitArguments, given, source=Call("fit"))
        from scalelab.laws.published import law_named
        from scalelab.recommend.knowledge import fit_step_times

        learnt, _ = self._history(arguments.learn_from)

        rows = self.fit_rows
        if arguments.up_to is not None:
            is_small = rows.observations["world_size"] <= arguments.up_to
            rows = rows.take(rows.observations.index[is_small.fillna(False)])

        return fit_step_times(law_named(arguments.law), rows, history=learnt)[0]

    @property
    def doubted_rows(self) -> tuple[str, ...]:
        """A sentence for each row that answers leave out.

        Other rows contradict it. Empty for a run of many rows, as the fit takes long.
        """
        from scalelab.recommend.answer.argument_words import left_out
        from scalelab.recommend.notes import doubts

        rows = self.fit_rows
        if not 0 < len(rows.frame) <= _QUICKLY_FIT:
            return ()
        device_type = next(iter(rows.observations["device_type"].dropna()), None)
        word = device_words(device_type, is_emulated=False).device
        found = doubts(self.fit().doubted, rows)
        return tuple(f"{left_out(fact.values, word)}." for fact in found)

    def recommend(
        self,
        *,
        price: ByDevice = None,
        prices: str | Path | None = None,
        spot: Mapping[str, Any] | None = None,
        power: ByDevice = None,
        pue: float | None = None,
        carbon_g_per_kwh: float | None = None,
        price_per_gpu_hour_usd: float | str | None = None,
        target: str | None = None,
        max_gap: float | None = None,
        confidence: float = 0.9,
        job: Mapping[str, Any] | None = None,
        gpus: Sequence[int] | int | None = None,
        select: Mapping[str, Scalar] | None = None,
        law: str = "scalelab",
        learn_from: Sequence[str | Path] | str | Path = (),
        batch: int | None = None,
        max_batch: int | None = None,
        local_batch: int | None = None,
        runs: int | None = None,
        pool: int | None = None,
        walltime: float | str | None = None,
        checkpoint: float | str | None = None,
        between_nodes: str | None = None,
        accept_unmeasured: bool = False,
        no_history: bool = False,
        what_if: bool = False,
        scaling: bool = False,
        **words: Any,
    ) -> Answer:
        """Recommend an allocation, a batch size and a learning-rate rule.

        Parameters
        ----------
        price
            What an hour of a device is charged, such as ``"2.5usd"``, or of a whole
            node, ``"9eur/node-h"``; for several kinds of devices by node group or
            model, ``{"c4": "0.39usd", "p2": "0.9usd"}``. Default: what ``prices`` says,
            else the profile of the run's site, else the imported table.
        prices
            Path of a price list, see :class:`scalelab.site.prices.PriceEntry`; default:
            the one that the site's profile names.
        spot
            What is known of the same nodes where they may be taken away, beside those
            on demand: ``{"price": 0.12}``; see :class:`scalelab.site.spot.Spot`.
        power
            What a device draws while it trains, such as ``"400W"``, or by device.
            Default: what counters of the devices measured, else the site's ``power_w``.
        pue
            Power usage effectiveness of the site, by which energy is multiplied.
        carbon_g_per_kwh
            Grams of CO2 equivalents per kWh of the electricity.
        price_per_gpu_hour_usd
            The same as ``price``, as a number of usd per device-hour.
        target
            Metric to reach instead of the job's, e.g. ``"val_acc >= 0.75"``.
        max_gap
            The most of the final metric that a way to train may lose against one
            process; ways whose gap is larger, or not measured, are not chosen.
        confidence
            Probability with which all limits must hold, in (0, 1).
        job
            Keys of an experiment's ``job``; default: the experiment's own.
        gpus
            Numbers of devices to consider besides the measured ones.
        select
            Values by column that narrow the observations to one workload and device.
        law
            Name of the step-time law.
        learn_from
            Directories of other runs, of other workloads on the same devices or of the
            same workload elsewhere, whose step times teach about this run's; default:
            those of the history, the folder that the site's ``history`` names, else
            ``~/.config/scalelab/history``.
        batch
            The global batch of the job; default: the job's own, else any that is inside
            the measured range.
        max_batch
            The largest global batch that may be used, instead of the largest measured.
        local_batch
            The local batch; default: any up to the largest measured.
        runs, pool
            A campaign: so many runs of the job on so many devices, of which each run
            has some. The limits are those of the whole campaign then.
        walltime
            The longest time of a job, e.g. ``"24h"``: how many chained jobs each
            allocation takes is added. Default: the site's, and added where an
            allocation takes several.
        checkpoint
            The time to write the checkpoint with which a chained job ends; default:
            what the site's ``spot`` says, else 60 s.
        between_nodes
            The link between nodes, e.g. ``"100Gbit/s 5us"``; it counts where no trial
            ran on several nodes. Default: what the site's profile says.
        accept_unmeasured
            Also choose what rests on what was not measured here, such as a network.
        no_history
            Learn from this run's own rows alone.
        what_if
            Add what other limits would choose, see :mod:`scalelab.recommend.what_if`.
        scaling
            Add strong and weak scaling, see :mod:`scalelab.recommend.scaling`.
        **words
            Upper limits, of every resource: ``max_time="4h"``, also ``deadline``, or
            ``max_gpu_hours=50``; see ``kinds.resources``. And keys of the job, instead
            of ``job``: ``epochs=90``.

        Raises
        ------
        SpecError
            If an argument is wrong, the observations mix workloads or devices, or
            nothing in the other runs is related to this one.
        StoreError
            If one of them is no run.
        FitError
            If the observations cannot answer.
        """
        given = {**locals()}
        del given["self"], given["words"]
        limits, keys = read_words(words)
        given["job"] = whole_job(job, keys, self.job)

        arguments = validated(RecommendArguments, given, source=Call("recommend"))
        _refuse_conflicts(arguments)
        if (result := self.search_result) is not None:
            raise SpecError(
                f"{' '.join(result.sentences)} {self.name} is a search: it compares "
                "settings on one allocation, so it answers no question of devices, "
                "times or prices. Ask a run without tune.",
                code="question_of_search",
            )

        from scalelab.recommend.answer.kept import Question
        from scalelab.recommend.question.batches import AskedBatch
        from scalelab.recommend.question.objective import Constraints
        from scalelab.session.answer import Answer

        quotes = tuple(self.quotes(arguments))
        question = Question(
            job=self.with_epoch(arguments.job) or self.job,
            limits=Constraints(
                limits=read_limits(limits, others=RecommendArguments.model_fields),
                target=arguments.target,
                accept=tuple(map(str, self._reader.conditions)),
                max_gap=arguments.max_gap,
                confidence=arguments.confidence,
            ),
            gpus=arguments.gpus,
            select=dict(sorted(arguments.select.items())),
            law=arguments.law,
            learn_from=tuple(
                str(Path(folder).resolve()) for folder in arguments.learn_from
            ),
            batches=AskedBatch(
                global_batch_size=arguments.batch,
                largest=arguments.max_batch,
                local_batch_size=arguments.local_batch,
            ),
            runs=arguments.runs,
            pool=arguments.pool,
            walltime_s=arguments.walltime,
            checkpoint_s=arguments.checkpoint,
            between_nodes=arguments.between_nodes,
            accept_unmeasured=arguments.accept_unmeasured,
            quotes=quotes,
            spot=arguments.spot,
            power=arguments.power,
            pue=arguments.pue,
            carbon_g_per_kwh=arguments.carbon_g_per_kwh,
            asks_what_if=arguments.what_if,
            asks_scaling=arguments.scaling,
            today=date.today() if any(quote.entry.date for quote in quotes) else None,
            # other laws learn from the asked rows alone
            history=""
            if arguments.no_history or arguments.learn_from or arguments.law != _LAW
            else str(self.history_directory),
        )

        # a target that no trial stopped at is read off streams, which may still grow,
        # as a history of prices may
        may_change = arguments.target is not None or self._has_history(question)
        answered = self._answered if may_change else self._asked
        from scalelab.session.next_step import next_step, without_limits

        found = answered(question)
        asked = {**given, **limits, "what_if": False, "scaling": False}
        facts = (*found.facts, next_step(self, found, asked))
        table = found.what_if and {
            **found.what_if,
            "command": without_limits(self, asked),
        }
        return Answer.of(replace(found, facts=facts, what_if=table), self)

    @property
    def batch_site(self) -> BatchSite | None:
        """The site of the run if it has a batch system; of several, the first."""
        sites = (known.site for known in self.sites.values())
        return next((site for site in sites if isinstance(site, BatchSite)), None)

    def ask_queue(self) -> str:
        """Ask the batch system of the run's site how long jobs waited in its queue.

        What it says is kept in the run's directory, for later answers. Returned is what
        came of it, in a sentence.
        """
        from scalelab.cluster.batch.queue import client_class

        site = self.batch_site
        if site is None:
            return f"Waits are not known: {self.name} ran on no cluster with a queue."
        try:
            client = client_class(site.batch_system)
            jobs = client.queue_waits(site.queue_name)
        except ClusterError as error:
            return f"Waits are not known: {error}"
        Waits.keep(self.directory, str(date.today()), jobs)
        return f"{counted(len(jobs), 'job')} of 30 days, kept for later answers."

    def job_script(self, answer: Recommendation, site: str | None = None) -> str:
        """Return the batch job's script for the recommended allocation.

        Its time limit is the answer's time at its confidence, and a tenth more; where
        the site's walltime is less, the script submits itself as a chain of jobs. What
        the answer says of the job is kept in the run's directory, and the job records
        its steps there for :func:`scalelab.follow`.

        Parameters
        ----------
        answer
            A recommendation of this run.
        site
            Name or path of the profile of a SLURM or PBS site; default: the
            experiment's own.

        Raises
        ------
        SpecError
            If the site has no batch system, or the run was imported.
        """
        from scalelab.recommend.afterwards.promise import Promise, keep_promise
        from scalelab.recommend.answer.job_lines import (
            JobTime,
            job_lines,
            recommended_trial,
        )
        from scalelab.site.job_script import job_script, with_batch_system

        if self.experiment is None:
            raise SpecError(
                f"{self.name} was imported and says nothing of a program. A job script "
                "needs a run that was swept.",
                code="script_of_table",
            )

        if answer.chooses_none:
            raise SpecError(
                " ".join(answer.said("unmet", "next_step")), code="nothing_chosen"
            )

        everywhere = self.experiment.resolve_site(site)
        where = with_batch_system(everywhere.in_group(answer.node_group or None))
        limits_s = filter(None, (where.walltime, answer.asked_walltime_s))
        time = JobTime.of(answer, min(limits_s, default=None))

        promise = Promise.of(answer, answer.chosen, self.name)
        recordings = keep_promise(self.directory, promise)
        return job_script(
            where,
            recommended_trial(self.experiment, answer).allocation,
            job_lines(self.experiment, where, answer, time, recordings),
            job_name=self.name,
            walltime_s=time.limit_s,
        )

    def figures_of(self, answer: Recommendation | None) -> Figures:
        """Return the report's figures with an answer; None: of what was measured."""
        from scalelab.report.html import Figures

        return Figures(self.fit_rows, answer, self.streams)

    def _asked(self, question: Question) -> Recommendation:
        # The kept answer to a question about the same records, or a new one.
        from scalelab.recommend.answer.kept import KeptAnswers

        kept = KeptAnswers(self.directory / "cache" / "answers.json", self.state)

        states: list[Any] = [RunRecords.open(r).state for r in question.learn_from]
        states.append(waits_state(self.directory))
        if question.history:
            states += [
                HistoryFolder(question.history).state,
                followed_jobs(question.history),
            ]

        words = repr((question, self.experiment_text, self.sites, states))
        is_more = question.asks_what_if or question.asks_scaling
        if not is_more and (found := kept.find(words)) is not None:
            return found

        answer = self._answered(question)
        if not self._reader.running():
            with suppress(StoreError):  # a reader may lack the right, or the room
                kept.keep(words, answer)

        return answer

    def _answered(self, question: Question) -> Recommendation:
        from threadpoolctl import threadpool_limits

        from scalelab.laws.convergence.metric_curves import answering
        from scalelab.recommend.answer.facts import Fact
        from scalelab.recommend.by_device import answer
        from scalelab.recommend.money.waits import waits_noted

        frame, target = self.observations, question.limits.target
        if target is not None:  # read from the curves of its metric
            frame = answering(frame, self._reader.streams, target)

        # Matrices of dozens of rows: threads on every core of a login node would wait.
        with threadpool_limits(limits=1, user_api="blas"):
            history, unread = self._history(question.learn_from, question.history)
            found = answer(
                question,
                self.fit_rows if frame is self.observations else frame,
                self.sites,
                history,
                self._untold(),
                followed_jobs(question.history) if question.history else (),
            )

        doubts = (
            Fact("import_doubted", {"doubt": doubt}) for doubt in self.import_doubts
        )
        left_out = (Fact.of("history_not_read", run=name) for name in unread)
        waits = Waits.read(self.directory) or Waits.of_attempts(self._reader.rows())
        noted = waits_noted(waits, found.chosen, question.limits)
        return replace(
            found,
            facts=(*self._before(question), *found.facts, *left_out, *doubts, *noted),
        )

    def quotes(self, arguments: RecommendArguments) -> Iterator[Quote]:
        """Yield the prices that are said elsewhere than by the site's own keys."""
        from scalelab.recommend.money.prices import GIVEN, TABLE, Quote, quotes_in
        from scalelab.site.prices import PriceEntry

        for entry in arguments.quoted():
            yield Quote(entry=entry, rank=GIVEN, said_by="as given")

        of_site = [run_site.site.prices for run_site in self.sites.values()]
        if named := arguments.prices or next(filter(None, of_site), None):
            yield from quotes_in(Path(named))

        for columns in self.table_prices:
            entry = PriceEntry.model_validate(columns)
            yield Quote(entry=entry, rank=TABLE, said_by="by the table")

    def _has_history(self, question: Question) -> bool:
        return any(
            terms and terms.history
            for terms in (
                question.spot,
                *(quote.entry.spot for quote in question.quotes),
                *(known.site.spot for known in self.sites.values()),
            )
        )

    def _untold(self) -> UntoldByProgram:
        if self.experiment is None:
            return {}
        from scalelab.experiment.command_values import untold_batches

        return untold_batches(self.experiment)

    def _before(self, question: Question) -> Iterator[Fact]:
        from scalelab.recommend.answer.facts import Fact

        # an imported table has no trials to come
        if self.experiment and (missing := self.status().num_missing):
            yield Fact("incomplete_sweep", {"num_trials": missing})
        if self.acceptance is not None:
            yield Fact("accepted", self.acceptance)

        if (known := self.job) and self.experiment and known != self.experiment.job:
            yield Fact.of("epoch_of_loader", samples=known.samples_per_epoch)

        other = None if question.job == self.job else question.job
        target, batch = question.limits.target, question.batches.global_batch_size
        batch = batch or (other.global_batch_size if other else None)
        job = [str(other)] if other else []
        job += [f"the target {target}"] if target else []

        job += [f"a global batch of {batch:,}"] if batch else []
        if job:
            yield Fact.of("asked_job", job=job, has_own=self.job is not None)

    def _history(
        self, learn_from: Sequence[str | Path], folder: str = ""
    ) -> tuple[History | None, Sequence[str]]:
        # other runs, and the names of those in the folder that cannot be read
        from scalelab.recommend.knowledge import History
        from scalelab.records.observations import frame

        if folder:
            known, unread = HistoryFolder(folder).runs(self._reader)
            named = [(name, frame(rows)) for name, rows in known.items()]
            return History.of(named, is_asked=False), unread

        others = {r.directory.resolve(): r for r in map(RunRecords.open, learn_from)}
        if self.directory.resolve() in others:
            raise SpecError(
                f"{self.name} knows its own rows. Learn from other runs.",
                code="own_rows",
            )

        named = [(r.hashed_name, r.observations) for r in others.values()]
        return History.of(named), ()


def _refuse_conflicts(arguments: RecommendArguments) -> None:
    if arguments.no_history and arguments.learn_from:
        raise SpecError(
            f"{Option('learn_from')} names what {Option('no_history', True)} refuses.",
            "Give one of the two.",
            code="history_said_twice",
        )
    if (arguments.runs is None) != (arguments.pool is None):
        raise SpecError(
            f"A campaign needs both {Option('runs', 24)} and {Option('pool', 32)}.",
            code="campaign_without_pool",
        )
