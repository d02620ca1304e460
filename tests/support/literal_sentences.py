"""Literal sentences that tests assert: texts of four words or more.

``python tests/support/literal_sentences.py`` counts them by room. A sentence is better
held in the golden file of its room, see ``sentences.py``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
_WORD = re.compile(r"(?<!\S)\S*[A-Za-z]{2}\S*")  # names of several parts are one word
_FEWEST_WORDS = 4


def literal_sentences(tree: ast.AST) -> Iterator[str]:
    """Yield the sentences in assertions, and in what is to match an error."""
    seen: set[ast.AST] = set()
    for node in ast.walk(tree):
        for part in filter(None, _asserted(node)):
            for text in ast.walk(part):
                if _is_sentence(text) and text not in seen:
                    seen.add(text)
                    yield str(ast.literal_eval(text))  # type: ignore[arg-type]


def _asserted(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assert):
        return [node.test]
    if isinstance(node, ast.Call):
        return [word.value for word in node.keywords if word.arg == "match"]
    return []


def _is_sentence(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return len(_WORD.findall(node.value)) >= _FEWEST_WORDS


def counts() -> Counter[str]:
    """Return the number of literal sentences by room; other tests are of `session`."""
    found: Counter[str] = Counter()
    for path in TESTS.rglob("*.py"):
        folder, *rest = path.relative_to(TESTS).parts
        room = folder if rest else "session"
        found[room] += len([*literal_sentences(ast.parse(path.read_text()))])
    return found


if __name__ == "__main__":
    by_room = counts()
    for room, count in by_room.most_common():
        print(f"{count:5} {room}")
    print(f"{by_room.total():5} in all")
