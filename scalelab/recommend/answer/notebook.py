"""The answer as Python shows it: text in a console, HTML in a notebook, a frame."""

from __future__ import annotations

from dataclasses import fields
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from scalelab.recommend.answer.recommendation import OutlookRow, Recommendation
from scalelab.recommend.answer.sentences import sentences, texts
from scalelab.recommend.answer.tables import allocations
from scalelab.recommend.answer.text import answer_text

if TYPE_CHECKING:
    import pandas as pd

_HEAD = ("use", "settings", "takes", "chance", "failed", "alternatives")
_NESTED = ("batch", "settings")


class Answer(Recommendation):
    """A recommendation that can be looked at."""

    __slots__ = ()

    @classmethod
    def of(cls, found: Recommendation) -> Self:
        """Return the same answer, to be looked at."""
        return cls(**{each.name: getattr(found, each.name) for each in fields(found)})

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything that the answer says, apart from its table."""
        return tuple(chain(*sentences(self).values()))

    def __repr__(self) -> str:
        return answer_text(self)

    def _repr_html_(self) -> str:
        said = sentences(self)
        use, *head = texts(said, *_HEAD)
        rest = texts(said, *(each for each in said if each not in _HEAD))
        titles, *rows = zip(*allocations(self).values(), strict=True)
        body = [
            _row(cells, "td", is_marked=row.is_chosen)
            for cells, row in zip(rows, self.rows, strict=True)
        ]
        return (
            f"<p><strong>{escape(use)}</strong><br>{'<br>'.join(map(escape, head))}</p>"
            f"<table><thead>{_row(titles, 'th')}</thead>"
            f"<tbody>{''.join(body)}</tbody></table>"
            f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in rest)}</ul>"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a frame, the units in the names."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])


def _row(cells: tuple[str, ...], tag: str, *, is_marked: bool = False) -> str:
    style = " style='font-weight: bold'" if is_marked else ""
    inside = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr{style}>{inside}</tr>"


def _flat(row: OutlookRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.to_json().items():
        if name in _NESTED:
            flat |= value
        elif isinstance(value, dict):
            flat[name] = value["value"]
            flat |= {f"{name}_{end}": value[end] for end in ("lo", "hi")}
        else:
            flat[name] = value
    return flat
