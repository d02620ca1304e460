"""Names that users guess: an error says which one to write.

What a notebook shows of an object is short: the same text as on a terminal.
"""

import sys
from collections.abc import Iterable, Mapping
from html import escape
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from scalelab.errors import SpecError
from scalelab.inputs.problems import one_of

# Columns stay under each other in notebooks and in their exports
_STYLE = "font-family: monospace; white-space: pre; overflow-x: auto"


class ShownText(str):
    """A text of several lines, which is shown as it is and not in quotes."""

    __slots__ = ()
    __repr__ = str.__str__

    def _repr_html_(self) -> str:
        return f"<pre style='{_STYLE}'>{escape(self)}</pre>"


class Guided:
    """A class whose errors name the attribute that a guessed name stands for.

    ``_instead`` holds what to write, by the guessed name.
    """

    __slots__ = ()
    _instead: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker knows the names itself

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # asked by Python or a library, not by a user
                raise AttributeError(name)
            raise no_such_name(type(self).__name__, name, self._instead, dir(self))

    def __dir__(self) -> list[str]:
        names = {*dir(type(self)), *getattr(self, "__dict__", ())}
        return sorted(name for name in names if name[0] != "_")

    def _repr_html_(self) -> str:
        return ShownText(repr(self))._repr_html_()


def no_such_name(
    owner: str, name: str, instead: Mapping[str, str], names: Iterable[str]
) -> AttributeError:
    """Return an error that says what to write instead of a name, else all names.

    >>> no_such_name("Run", "df", {"df": "run.observations"}, [])
    AttributeError("Run has no 'df'. Write run.observations.")
    """
    hint = f"Write {instead[name]}." if name in instead else one_of(names, name)
    return AttributeError(f"{owner} has no {name!r}. {hint}")


def refuse_calls(package: str, instead: str) -> None:
    """Let a package whose name users take for a function say what to call."""

    class Package(ModuleType):
        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise SpecError(
                f"{package} is a package, no function. Write {instead}.",
                code="package_called",
            )

    sys.modules[package].__class__ = Package


def by_guess(names: Mapping[str, str]) -> dict[str, str]:
    """Return what to write by guessed name, from the guesses by what to write.

    >>> by_guess({"run.observations": "df data"})
    {'df': 'run.observations', 'data': 'run.observations'}
    """
    return {
        guess: right for right, guesses in names.items() for guess in guesses.split()
    }
