"""Sentences of a room, held once: in its golden file, which ``make golden`` writes.

A refusal has a code, a fact a kind. Other tests check these and the values. How they
are said is read in the golden file, and reviewed in its diff.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import scalelab
from scalelab.errors import ScaleLabError

IS_WRITTEN = bool(os.environ.get("SCALELAB_WRITE_GOLDEN"))
_FOLDER = Path(__file__).parents[1] / "golden" / "sentences"
_PACKAGE = Path(scalelab.__file__).parent
_REFUSALS = ("SpecError", "paragraph")
_HEADING = re.compile(r"^== (.+) ==\n", re.MULTILINE)
_FOLDERS_OF_TEST = re.compile(r"(?<![\w./:])/(?:[\w.-]+/)+")


@contextmanager
def refused(
    code: str, *values: object
) -> Iterator[pytest.ExceptionInfo[ScaleLabError]]:
    """Expect a refusal of this code, whose sentence has these values."""
    with pytest.raises(ScaleLabError) as caught:
        yield caught
    sentence = str(caught.value)
    assert caught.value.code == code, sentence
    for value in values:
        assert str(value) in sentence


class Golden:
    """The golden file of a room, and a test whose sentences it holds."""

    def __init__(self, room: str, test: str) -> None:
        self._room, self._test, self._num_held = room, test, 0
        self._path = _FOLDER / f"{room}.txt"

    def __call__(self, *sentences: str) -> None:
        """Compare what this test has rendered, sentence by sentence."""
        self._num_held += 1
        number = f" {self._num_held}" if self._num_held > 1 else ""
        self.hold(f"{self._test}{number}", *sentences)

    def refusals(self, rows: Iterable[tuple[str, Callable[[], object]]]) -> None:
        """Provoke each refusal of the room by its code; compare what they say."""
        said: dict[str, list[str]] = {}
        for code, provoke in rows:
            with refused(code) as caught:
                provoke()
            said.setdefault(code, []).append(str(caught.value))

        assert not _without_code(self._room)
        assert not _codes_of(self._room) - said.keys()
        for code, sentences in said.items():
            self.hold(f"refusal {code}", *sentences)

    def hold(self, heading: str, *sentences: str) -> None:
        """Compare sentences with those below a heading, or write them there."""
        lines = [_FOLDERS_OF_TEST.sub("/.../", line) for line in sentences]
        text = "\n".join(lines).rstrip("\n")
        sections = self._sections()
        if IS_WRITTEN:
            sections[heading] = text
            written = [f"== {name} ==\n{sections[name]}\n" for name in sorted(sections)]
            self._path.write_text("\n".join(written))
        assert text == sections.get(heading), "`make golden` writes it; read the diff."

    def _sections(self) -> dict[str, str]:
        text = self._path.read_text() if self._path.exists() else ""
        _, *parts = _HEADING.split(text)
        return {
            name: body.rstrip("\n")
            for name, body in zip(parts[::2], parts[1::2], strict=True)
        }


def _refusals_of(room: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((_PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _REFUSALS:
                yield f"{path.relative_to(_PACKAGE)}:{node.lineno}", node


def _codes(call: ast.Call) -> list[ast.expr]:
    return [word.value for word in call.keywords if word.arg == "code"]


def _without_code(room: str) -> list[str]:
    return [place for place, call in _refusals_of(room) if not _codes(call)]


def _codes_of(room: str) -> set[str]:
    """Return the codes that stand in the source of a room."""
    codes = [code for _, call in _refusals_of(room) for code in _codes(call)]
    return {str(code.value) for code in codes if isinstance(code, ast.Constant)}
