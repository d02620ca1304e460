"""A run that is asked: the kept answer to a question, or a new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalelab.errors import SpecError, StoreError
from scalelab.records.afterwards.followed import KeptJob, followed_jobs
from scalelab.records.afterwards.waits import Waits, waits_state
from scalelab.records.history import HistoryFolder
from scalelab.session.arguments import RecommendArguments
from scalelab.session.records import RunRecords

if TYPE_CHECKING:
    from scalelab.recommend.answer.facts import Fact
    from scalelab.recommend.answer.kept import Question
    from scalelab.recommend.answer.recommendation import Recommendation
    from scalelab.recommend.knowledge import History
    from scalelab.recommend.money.prices import Quote
    from scalelab.recommend.question.candidates import UntoldByProgram


class AskedRun(RunRecords):
    """A run that answers questions from its records, and from those of other runs."""

    def _asked(self, question: Question) -> Recommendation:
        # The kept answer to a question about the same records, or a new one.
        from scalelab.recommend.answer.kept import KeptAnswers

        kept = KeptAnswers(self.directory / "cache" / "answers.json", self.state)

        states: list[Any] = [RunRecords.open(r).state for r in question.learn_from]
        states.append(waits_state(self.directory))
        if question.history:
            states += [HistoryFolder(question.history).state, self._followed(question)]

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
                self._followed(question),
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

    def _followed(self, question: Question) -> tuple[KeptJob, ...]:
        return followed_jobs(question.history) if question.history else ()

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
            raise SpecError(f"{self.name} knows its own rows. Learn from other runs.")

        named = [(r.hashed_name, r.observations) for r in others.values()]
        return History.of(named), ()
