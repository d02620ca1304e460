"""Command lines that a text shows, read as ``scalelab`` reads them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from scalelab.cli.main import UsageError, build_app

_LINE = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(scalelab .*)$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page that are marked with a language, or not."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for marked, block in found if marked == language]


def in_blocks(text: str) -> list[str]:
    """Return the command lines of a page's code blocks; what is optional counts."""
    lines = [
        line
        for language in ("", "console")
        for block in blocks(text, language)
        for line in _LINE.findall(block)
    ]
    return [line.replace("[", "").replace("]", "") for line in lines]


def between_backticks(text: str) -> list[str]:
    """Return the command lines that stand in a text; they may leave arguments out."""
    return re.findall(r"`(scalelab [^`]+)`", text)


def read(line: str, *, is_whole: bool = True) -> None:
    """Read a command line and do nothing; one that is wrong is an error.

    Where it is not whole, an argument may be missing.
    """
    command = _harmless()
    words = shlex.split(line, comments=True)[1:]
    try:
        with command.make_context("scalelab", words) as context:
            command.invoke(context)
    except UsageError as error:
        if is_whole or not error.format_message().startswith("Missing argument"):
            raise AssertionError(f"{line}: {error.format_message()}") from error


def options(line: str) -> set[str]:
    """Return the options that the command of a line has."""
    command = _harmless()
    for word in shlex.split(line, comments=True)[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    return {name for parameter in command.params for name in parameter.opts}


@cache
def _harmless() -> Any:
    """Return the application with commands that do nothing."""
    app = typer.main.get_command(build_app())
    for command in _leaves(app):
        command.callback = None
    return app


def _leaves(command: Any) -> Iterator[Any]:
    for each in getattr(command, "commands", {}).values():
        yield from _leaves(each) if hasattr(each, "commands") else [each]
