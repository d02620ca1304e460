"""A registry: the rows of one kind by name, built in or from installed distributions.

A distribution adds a row with an entry point of the group ``scalelab.<kind>``::

    [project.entry-points."scalelab.strategies"]
    my_strategy = "my_package.strategy:MyStrategy"

It names an object, or a class that is called without arguments. Distributions are
looked through only when a name is not built in, or all names are asked for: that takes
longer than everything else a command does before it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from scalelab.errors import SpecError
from scalelab.inputs.problems import one_of, shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Row(Protocol):
    """A row of a registry: a small object, and its name in files."""

    @property
    def name(self) -> str:
        """Name of the row in experiments, sites and records."""


R = TypeVar("R", bound=Row)


class Registry(Generic[R]):
    """The rows of one kind, in the order in which they are listed to users.

    ``group`` names the entry points that add rows of the class ``row_type``, ``key`` is
    what users write the name for; no row from outside replaces a built-in one.

    Examples
    --------
    >>> from scalelab.kinds.strategies import STRATEGIES
    >>> STRATEGIES["ddp"].is_synchronous
    True
    """

    def __init__(
        self, group: str, row_type: type[R], *, key: str, built_in: Iterable[R]
    ) -> None:
        self.group = group
        self.key = key
        self._row_type = row_type
        self.built_in = tuple(built_in)
        self._built_in = {row.name: row for row in self.built_in}
        self._loaded: dict[str, R] = {}

    def __getitem__(self, name: str) -> R:
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._outside

    def __iter__(self) -> Iterator[R]:
        return (self[name] for name in self.names)

    @property
    def outside(self) -> Mapping[str, str]:
        """Rows of installed distributions: path and version by name."""
        return {
            entry.name: f"{entry.value} {entry.dist.version if entry.dist else ''}"
            for offers in self._outside.values()
            for entry in offers
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Every name there is, the built-in ones first."""
        outside = sorted(name for name in self._outside if name not in self._built_in)
        return (*self._built_in, *outside)

    @cached_property
    def _outside(self) -> Mapping[str, list[EntryPoint]]:
        from importlib.metadata import entry_points

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group):
            found.setdefault(entry.name, []).append(entry)
        return found

    def _load(self, name: str) -> R:
        offers = self._outside.get(name, [])
        if not offers:
            raise SpecError(
                f"{self.key}={shown(name)} is not known. {one_of(self.names, name)}",
                code="unknown_kind",
            )

        if len({entry.value for entry in offers}) > 1:
            offered = ", ".join(sorted(entry.value for entry in offers))
            raise SpecError(
                f"{self.key}={name} is offered {len(offers)} times: {offered}. "
                "Uninstall all but one of these distributions.",
                code="kind_offered_twice",
            )

        (entry, *_) = offers
        try:
            found = entry.load()
            row = found() if isinstance(found, type) else found
        except Exception as error:
            raise SpecError(
                f"{self.key}={name} cannot be loaded from {entry.value}: "
                f"{type(error).__name__}: {error}. Mend or uninstall the distribution.",
                code="kind_not_importable",
            ) from error

        is_named = getattr(row, "name", None) == name
        if not isinstance(row, self._row_type) or not is_named:
            raise SpecError(
                f"{self.key}={name}: {entry.value} is no {self._row_type.__name__} of "
                f"that name but {shown(row)}. Mend or uninstall the distribution.",
                code="kind_of_other_type",
            )

        return row


def imported(path: str) -> Any:
    """Return what a row names by path, ``module:attribute``, importing its module.

    Rows are plain data: what they name may need torch or Dask, which the rooms that ask
    the row for anything else do not load.
    """
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
