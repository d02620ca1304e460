"""Spot: nodes that cost less and may be taken away while a job runs."""

from typing import Any, ClassVar

from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from scalelab.inputs.fields import Duration, PathText, Price, Section, Word


class Spot(Section):
    """The price of interruptible nodes, and what interruptions cost a job.

    What is said in several places is joined: each key of a question counts for more
    than that of a price list, and that for more than the site's.
    """

    shorthand: ClassVar[JsonSchemaValue | None] = {"type": ["number", "string"]}

    price: Price | None = Field(
        default=None, description="What is charged per hour, instead of on demand."
    )
    interrupted_every: Duration | None = Field(
        default=None,
        description="Mean time between two interruptions of one node, such as 6h "
        "[default: what this run's own nodes show].",
    )
    checkpoint: Duration | None = Field(
        default=None,
        description="Time to write a checkpoint, while nothing is computed "
        "[default: 60s, assumed].",
    )
    checkpoint_every: Duration | None = Field(
        default=None,
        description="Work between two checkpoints [default: what loses least time].",
    )
    restart: Duration | None = Field(
        default=None,
        description="From the start of the ranks to their first step "
        "[default: the measured start-up, else 60s, assumed].",
    )
    wait: Duration | None = Field(
        default=None,
        description="Mean time until a lost node is replaced [default: 180s, assumed].",
    )
    history: PathText | None = Field(
        default=None,
        description="A file of past prices, a CSV with the columns time and usd, or "
        "another currency: they take the place of the price.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_price(cls, value: Any) -> Any:
        if isinstance(value, int | float | str):
            return {"price": value}
        return value


class AskedSpot(Spot):
    """The terms in a question; price and history may belong to one device."""

    device: Word | None = Field(
        default=None,
        description="The device whose price or history is said, where several were "
        "measured; the other keys hold for all.",
    )

    def on(self, device: str) -> Spot:
        """Return the terms of a device, without price and history of another one."""
        of_one = set() if self.device in (None, device) else {"price", "history"}
        kept = self.model_fields_set - {"device"} - of_one
        return Spot.model_construct(**{name: getattr(self, name) for name in kept})


def joined_terms(*terms_said: Spot | None) -> Spot | None:
    """Return the terms of several places: each key of a later one counts for more."""
    joined = None
    for terms in filter(None, terms_said):
        given = {name: getattr(terms, name) for name in terms.model_fields_set}
        joined = joined.model_copy(update=given) if joined else terms
    return joined
