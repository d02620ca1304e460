"""The question of an adaptive sweep: what an answer is asked, beside its source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field

from scalelab.errors import SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.fields import (
    Count,
    Fraction,
    Json,
    LinkText,
    OneOrMany,
    Section,
    Text,
)
from scalelab.inputs.money import parse_rate
from scalelab.inputs.problems import validated
from scalelab.kinds.resources import read_limits
from scalelab.recommend.answer.kept import Question
from scalelab.recommend.by_device import limits_of
from scalelab.recommend.money.prices import GIVEN, Quote, quotes_in
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.devices import DeviceKind
from scalelab.recommend.question.objective import Constraints
from scalelab.records.observations import frame
from scalelab.site.prices import PriceEntry
from scalelab.site.profile import Site


class AdaptiveQuestion(Section):
    """What an adaptive sweep is to answer: limits and beliefs, as ``recommend`` has.

    Every other key is an upper limit on a resource, such as ``max_time: 4h``.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Json]

    confidence: Fraction = Field(
        default=0.9, description="The probability with which all limits must hold."
    )
    batch: Count | None = Field(default=None, description="The job's global batch.")
    max_batch: Count | None = Field(
        default=None, description="The largest global batch; default: any that runs."
    )
    between_nodes: LinkText | None = Field(
        default=None, description="The link between nodes, such as 100Gbit/s 5us."
    )
    price: Text | None = Field(
        default=None, description="What an hour of a device costs; default: the site's."
    )
    learn_from: OneOrMany[Text] = Field(
        default=(), description="Directories of other runs to learn step times from."
    )

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> AdaptiveQuestion:
        """Read what stands under ``source.question``."""
        asked = validated(cls, given or {}, source="source.question")
        asked.limits()  # that are wrong are refused at once
        return asked

    def __str__(self) -> str:
        given = {**self.__pydantic_extra__, **self._said}
        words = [f"{name} {value}" for name, value in given.items()]
        return ", ".join(words) or "up to which count more devices pay"

    @property
    def _said(self) -> dict[str, Any]:
        names = self.model_fields_set & type(self).model_fields.keys()
        return {name: getattr(self, name) for name in sorted(names)}

    def check(self, site: Site) -> None:
        """Refuse a limit that no site's profile gives a price for, before trials run.

        Raises
        ------
        SpecError
            A limit needs what nothing says. A price list is read once devices are
            known.
        """
        if site.prices is None:
            kind = DeviceKind(device_type=site.device_type.value)
            question = self.of(None, 1, site)
            limits = limits_of(question, kind, frame([]), site)
            limits.spending(np.ones((1, 1)), np.ones(1), np.ones(1))

    def check_batches(self, job: Job, totals: Collection[int]) -> None:
        """Refuse a batch that no candidate has.

        Raises
        ------
        SpecError
            The batch of the job, or the largest, is none of ``totals``; or a job in
            steps leaves open which it is.
        """
        wanted = self.batch or job.global_batch_size
        if job.steps and wanted is None and len(totals) > 1:
            raise SpecError(
                f"job.steps={job.steps:,} is as many samples as the batch says, and "
                "candidates have several. Add job.global_batch_size, or write the job "
                "in samples."
            )
        if wanted is not None and wanted not in totals:
            raise SpecError(
                f"the job's global batch of {wanted:,} is that of no candidate: they "
                f"have {', '.join(map(str, sorted(totals)))}. Write global_batch_size: "
                f"{wanted} beside gpus, so that each shares it."
            )
        if self.max_batch is not None and self.max_batch < min(totals):
            raise SpecError(
                f"source.question: max_batch={self.max_batch} is less than the least "
                f"global batch of a candidate, {min(totals)}. Allow a larger one."
            )

    def limits(self) -> dict[str, float]:
        """Return the limits by the resource's name."""
        return read_limits(self.__pydantic_extra__, others=type(self).model_fields)

    def of(self, job: Job | None, largest: int, site: Site) -> Question:
        """Return the question about a job, ``largest`` the largest global batch."""
        quotes = tuple(quotes_in(Path(site.prices))) if site.prices else ()
        if self.price is not None:
            rate = parse_rate(self.price)
            entry = PriceEntry(on_demand=rate.money, per=rate.per)
            quotes = (Quote(entry=entry, rank=GIVEN, said_by="as given"), *quotes)

        return Question(
            job=job,
            limits=Constraints(limits=self.limits(), confidence=self.confidence),
            batches=self._batches(job, largest),
            between_nodes=self.between_nodes,
            accept_unmeasured=True,
            quotes=quotes,
        )

    def _batches(self, job: Job | None, largest: int) -> AskedBatch:
        is_named = self.batch is not None or (job and job.global_batch_size)
        if is_named or self.max_batch is not None:
            return AskedBatch(global_batch_size=self.batch, largest=self.max_batch)
        return AskedBatch(largest=largest)
