"""The runs in a folder."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

from scalelab.errors import StoreError
from scalelab.inputs.guessed import ShownText
from scalelab.session.run import Run


class Runs(Sequence[Run]):
    """The runs in a folder, the one that was swept last first."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._runs: list[Run] = []
        headers = Path(folder).glob("*/run.json")
        for header in sorted(headers, key=lambda path: -path.stat().st_mtime):
            with suppress(StoreError):  # it is no run, or one of a newer version
                self._runs.append(Run.open(header.parent))

    @property
    def newest(self) -> Run:
        """The run that was swept last.

        Raises
        ------
        StoreError
            If there is none.
        """
        if not self._runs:
            raise StoreError(repr(self))
        return self._runs[0]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> list[Run]: ...

    def __getitem__(self, index: int | slice) -> Run | list[Run]:
        return self._runs[index]

    def __repr__(self) -> str:
        if not self._runs:
            return (
                f"No run lies in {self.folder}. Make one with scalelab.sweep(...) or "
                "scalelab.import_table(...)."
            )
        return "\n".join(map(repr, self._runs))

    def _repr_html_(self) -> str:
        return ShownText(repr(self))._repr_html_()
