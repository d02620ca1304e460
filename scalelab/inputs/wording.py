"""Options as values: written as the command line has them, or as Python has them.

``--max-batch 64`` on the command line is ``max_batch=64`` in Python. Messages hold the
option as a value, which writes itself for whoever reads: Python, unless the command
line has said that it does.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any, NamedTuple

_is_command_line: ContextVar[bool] = ContextVar("is_command_line", default=False)
_holds_options: ContextVar[bool] = ContextVar("holds_options", default=False)
_SHORTER = {
    "max_cost_usd": "max_cost",
    "directory": "run",
    "budget": "sweep_budget",
}


@contextmanager
def for_the_command_line() -> Iterator[None]:
    """Write options as the command line has them, in this block."""
    token = _is_command_line.set(True)
    try:
        yield
    finally:
        _is_command_line.reset(token)


class Placeholder(str):
    """A word that stands for a number, as in ``tokens_per_sample=N``."""

    __slots__ = ()
    __repr__ = str.__str__


class Option(NamedTuple):
    """An option of the command line, which is an argument in Python.

    >>> constant = Option("constant", "8", key="gpus_per_node")
    >>> print(constant, Option("axis", ["zero stage"]), Option("per_device", True))
    constant={'gpus_per_node': '8'} axis=['zero stage'] per_device=True
    >>> with for_the_command_line():
    ...     print(constant, Option("axis", ["zero stage"]), Option("per_device", True))
    --constant gpus_per_node=8 --axis 'zero stage' --per-device
    """

    name: str  # of the argument, such as max_batch; job.steps for a key of one
    # None: the name alone; True: a switch; a list: an option that may come repeatedly
    value: Any = None
    key: str = ""  # the name in an option that says NAME=VALUE

    def __str__(self) -> str:
        value = self.value
        if not _is_command_line.get():
            if value is None:
                return self.name
            return f"{self.name}={ {self.key: value} if self.key else value!r}"

        name = self.name.removeprefix("job.")
        option = f"--{_SHORTER.get(name, name).replace('_', '-')}"
        if value is None or value is True:
            return option

        text = shlex.quote(str(value[0] if isinstance(value, list) else value))
        return f"{option} {self.key}={text}" if self.key else f"{option} {text}"


class Command(NamedTuple):
    """A command of the command line with its options, which is a call in Python.

    >>> ask = Command("recommend", ("runs/vit",), {"max_time": "4h", "gpus": [8, 16]})
    >>> print(ask)
    scalelab.load('runs/vit').recommend(max_time='4h', gpus=[8, 16])
    >>> with for_the_command_line():
    ...     print(ask)
    scalelab recommend runs/vit --max-time 4h --gpus 8,16
    """

    name: str
    subjects: tuple[str, ...]
    options: Mapping[str, Any]

    def __str__(self) -> str:
        subjects = [*self.subjects]
        if _is_command_line.get():
            words = [self.name, *map(shlex.quote, subjects)]
            options = (_options(*option) for option in self.options.items())
            return " ".join(["scalelab", *words, *chain(*options)])

        given = {
            name: argument
            for name, argument in self.options.items()
            if name != "sbatch"
        }
        arguments = [f"{name}={value!r}" for name, value in given.items()]
        if self.name == "recommend":
            run = f"scalelab.load({subjects[0]!r})"
            answer = f"recommend({', '.join(arguments)})"
            if "sbatch" in self.options:
                return f"run = {run}; print(run.job_script(run.{answer}))"
            return f"{run}.{answer}"

        name = {"import": "import_table"}.get(self.name, self.name)
        return f"scalelab.{name}({', '.join([*map(repr, subjects), *arguments])})"


def _options(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        is_job = name == "job"
        return [
            str(
                Option(f"job.{key}", _plain(entry))
                if is_job
                else Option(name, _plain(entry), key=key)
            )
            for key, entry in value.items()
        ]

    if name == "gpus" and not isinstance(value, int):
        return [str(Option(name, ",".join(map(str, value))))]

    several = value if isinstance(value, list | tuple) else [value]
    return [str(Option(name, _plain(entry))) for entry in several]


def _plain(value: Any) -> Any:
    return f"{value:.15g}" if isinstance(value, float) else value


def key(name: str) -> str:
    """Write a key of YAML; as an option where the command line asks by it."""
    return str(Option(name)) if _holds_options.get() else name


class Call(NamedTuple):
    """A call whose arguments are checked; the command line names the option alone."""

    name: str

    def __str__(self) -> str:
        return "" if _is_command_line.get() else f"{self.name}: "

    def argument(self, path: str) -> str:
        """Return an argument, or a key in it; the job's keys are options themselves."""
        is_nameless = not path or (path == "job" and _is_command_line.get())
        return "" if is_nameless else str(Option(path))

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Write keys as options in this block, if the command line calls."""
        token = _holds_options.set(_is_command_line.get())
        try:
            yield
        finally:
            _holds_options.reset(token)
