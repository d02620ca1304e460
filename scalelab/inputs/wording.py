"""The words of messages: options for the command line, arguments for Python.

Messages are written with options, as the command line has them. Calls from Python name
the same things as arguments, so messages and notes are put into its words where they
leave.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, TypeVar

from scalelab.errors import ScaleLabError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_is_command_line: ContextVar[bool] = ContextVar("is_command_line", default=False)

# Options with both words in one message are left out: --samples, --steps.
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(r"--(column|constant|melt|select) ([\w.]+)=('[^']*'|[\w/.-]*[\w/])"),
        lambda found: f"{found[1]}={{'{found[2]}': {_quoted(found[3])}}}",
    ),
    (
        re.compile(r"--(axis|ignore) ('[^']*'|NAME\b)"),
        lambda found: f"{found[1]}=[{_quoted(found[2])}]",
    ),
    (
        re.compile(r"--(learn-from) (RUN\b)"),
        lambda found: f"{_argument(found[1])}={_quoted(found[2])}",
    ),
    (
        re.compile(r"--(tokens-per-sample) (\d+|N\b)"),
        lambda found: f"{_argument(found[1])}={found[2]}",
    ),
    (
        re.compile(r"--(per-device|accept-doubts|accept-unmeasured)\b"),
        lambda found: f"{_argument(found[1])}=True",
    ),
    (
        re.compile(
            r"--(column|constant|melt|select|axis|ignore|batch|max-batch|local-batch|gpus|law"
            r"|between-nodes|learn-from|tokens-per-sample)\b"
        ),
        lambda found: _argument(found[1]),
    ),
)


def _argument(option: str) -> str:
    return option.replace("-", "_")


def _quoted(value: str) -> str:
    return value if value.startswith("'") else f"'{value}'"


_ARGUMENT = re.compile(
    r"^(?:recommend: )?(?:job[.:] ?)?"
    r"(price_per_gpu_hour_usd|confidence|target|gpus|batch|max_batch|local_batch|law"
    r"|between_nodes|epochs|samples|samples_per_epoch|steps|max_\w+)(?==|: | needs)"
)
_RIVALS = re.compile(r"^recommend: job: (\w+) and (\w+)(?= both)")
_EPOCH = "samples_per_epoch"
_OTHER_NAMES = {"price_per_gpu_hour_usd": "price", "max_cost_usd": "max_cost"}


def as_options(text: str) -> str:
    """Return a message with the argument that it begins with as an option.

    >>> as_options("recommend: job.samples=0 must be at least 1.")
    '--samples=0 must be at least 1.'
    >>> as_options("recommend: job: epochs needs samples_per_epoch. Add it.")
    '--epochs needs --samples-per-epoch. Add it.'
    """
    if found := _ARGUMENT.match(text):
        rest = text[found.end() :].replace(_EPOCH, _option(_EPOCH))
        return f"{_option(found[1])}{rest}"
    if found := _RIVALS.match(text):
        return f"{_option(found[1])} and {_option(found[2])}{text[found.end() :]}"
    return text


def _option(argument: str) -> str:
    return f"--{_OTHER_NAMES.get(argument, argument).replace('_', '-')}"


@contextmanager
def of_the_command_line() -> Iterator[None]:
    """Leave the words of messages as they are in this block."""
    token = _is_command_line.set(True)
    try:
        yield
    finally:
        _is_command_line.reset(token)


def in_words_of_the_caller(text: str) -> str:
    """Return a text with options as arguments, unless the command line asked for it.

    >>> in_words_of_the_caller("Say --constant gpus_per_node=8 or --per-device.")
    "Say constant={'gpus_per_node': '8'} or per_device=True."
    """
    if _is_command_line.get():
        return text
    for form, written in _FORMS:
        text = form.sub(written, text)
    return text


def in_own_words(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function's errors speak the words of its caller."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except ScaleLabError as error:
            error.args = tuple(
                in_words_of_the_caller(each) if isinstance(each, str) else each
                for each in error.args
            )
            raise

    return call
