"""The base class of strategies, and what they are asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from scalelab.errors import SpecError
from scalelab.inputs.allocation import Allocation
from scalelab.inputs.document import Scalar
from scalelab.inputs.fields import whole
from scalelab.inputs.problems import validated

# A trial's further axes by name: those of its strategy, and others.
TrialOptions = Mapping[str, Scalar]
# The values that an experiment lists for each option that it sets.
ListedValues = Mapping[str, Sequence[Scalar]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSizes:
    """The sizes of a trial, which a strategy may refuse before anything runs.

    There is a rank for each device of the allocation; ``options`` are further axes.
    """

    allocation: Allocation
    local_batch_size: int
    gradient_accumulation_steps: int = 1
    options: TrialOptions = field(default_factory=dict)


class Strategy:
    """The way in which a model and its batch are spread over the ranks.

    A subclass sets ``name`` and overrides what differs from data parallelism. It is
    arithmetic: what computes the steps is an engine of a trainer.

    Attributes
    ----------
    name
        Value of the axis ``parallelism``.
    needed_options
        Options without which no workload is trained this way.
    is_synchronous
        All ranks take the same step, from the same weights. Where not, the number of
        workers changes what training converges to.
    factorises
        Samples to a target do not depend on who computed them, so that time to target
        is samples needed times time per sample.
    shards_state
        Parameters, gradients or optimiser state are spread over the ranks, so that more
        of them leave each more memory.
    splits_model
        The layers of the model are divided over the ranks, and the local batch into
        micro-batches: the workload must train a model, and its local batches are
        listed, not searched for.
    """

    name: str
    needed_options: tuple[str, ...] = ()
    is_synchronous: bool = True
    factorises: bool = True
    shards_state: bool = False
    splits_model: bool = False

    class Options(BaseModel):
        """Axes under ``options`` that belong to the strategy and not to the workload.

        Trials of other strategies in the same experiment do not vary them. Each field
        has a default, and a description that says what it is: messages end with it.
        """

        model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

        @classmethod
        def of(cls, options: TrialOptions) -> Self:
            """Return what the options of a trial or of a recorded row say.

            What is no value of an option counts as not given, because commands may call
            their options as they like.
            """
            fields = cls.model_fields
            given = {name: whole(options[name]) for name in fields if name in options}
            try:
                return cls.model_validate(given)
            except ValidationError as error:
                wrong = {detail["loc"][0] for detail in error.errors()}
                return cls.model_validate(
                    {name: given[name] for name in given if name not in wrong}
                )

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the axes that belong to the strategy."""
        return tuple(self.Options.model_fields)

    def check_options(self, listed: ListedValues) -> None:
        """Refuse wrong values of an experiment with a workload, or a missing option."""
        for name in self.needed_options:
            if name not in listed:
                meaning = self.Options.model_fields[name].description
                raise SpecError(
                    f"parallelism={self.name} needs options.{name}. {meaning}",
                    code="option_missing",
                )

        lists = {name: listed[name] for name in self.options if name in listed}
        for number in range(max(map(len, lists.values()), default=0)):
            row = {
                name: lists[name][min(number, len(lists[name]) - 1)] for name in lists
            }
            source = f"parallelism={self.name}"
            validated(_section(self.Options), {"options": row}, source=source)

    def effective_options(self, options: TrialOptions) -> TrialOptions:
        """Return those of a trial's options that say something beside the others.

        The rest is not varied, and is no part of the trial.
        """
        return options

    def altering_options(self, options: TrialOptions) -> TrialOptions:
        """Return those of a trial's options that alter what a global batch teaches.

        They do so on one rank as on many: convergence is measured apart for their
        values, and the accuracy of other ways is not compared with such a rank.
        """
        return {}

    def data_parallel_size(self, world_size: int, options: TrialOptions) -> int:
        """Return how many ranks see different samples, or refuse to divide them."""
        return world_size

    def check(self, sizes: TrialSizes) -> None:
        """Refuse the sizes of a trial that do not suit the strategy."""

    def cycle(self, options: TrialOptions) -> int:
        """Return the steps after which the work of a step repeats.

        A throughput trial measures whole cycles.
        """
        return 1

    def num_servers(self, world_size: int, options: TrialOptions) -> int:
        """Return how many processes keep the parameters.

        They run beside rank 0, on the CPU, and hold no device.
        """
        return 0

    def steps_in_flight(self, world_size: int, options: TrialOptions) -> int:
        """Return the optimiser steps of all workers between two messages of one.

        It is 1 where workers wait for each other.
        """
        return 1


@cache
def _section(options: type[BaseModel]) -> type[BaseModel]:
    # Messages name options as an experiment does.
    fields: dict[str, Any] = {"options": (options, ...)}
    return create_model("Experiment", **fields)
