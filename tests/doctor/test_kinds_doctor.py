"""``scalelab doctor --kinds``: what is installed of each kind, and what is wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributions import install

from scalelab.cli import main
from scalelab.doctor import kinds
from scalelab.kinds.sources import SOURCES
from scalelab.kinds.strategies import STRATEGIES

Offer = Callable[[str, str, str], None]
ROWS = """
from scalelab.kinds.sources import Source
from scalelab.kinds.strategy import Strategy

class Whole(Strategy):
    name = "whole"

class Nameless(Strategy):
    pass

LOST = Source(name="lost", factory="{module}:nowhere")
DRY = Source(name="dry", factory="no_such_module:Dry")
"""


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install rows of a distribution, and look at strategies and sources alone."""
    monkeypatch.syspath_prepend(str(tmp_path))
    few = {name: kinds._REGISTRIES[name] for name in ("strategy", "source")}
    monkeypatch.setattr(kinds, "_REGISTRIES", few)

    def forget() -> None:
        for registry in (STRATEGIES, SOURCES):
            vars(registry).pop("_outside", None)

    def install_one(group: str, name: str, row: str) -> None:
        module = f"offers_{name}_rows"
        code = ROWS.format(module=module)
        install(
            tmp_path, f"offers_{name}", group, code=code, **{name: f"{module}:{row}"}
        )
        forget()

    yield install_one
    forget()


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what was printed of each row, by its name."""
    said = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    return {words[2]: " ".join((words[0], *words[3:])) for words in said}


def test_rows_are_listed_with_their_origin(
    offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer("scalelab.strategies", "whole", "Whole")
    assert main.run(["doctor", "--kinds"]) == 0
    found = lines(capsys)
    assert found["whole"] == "ok offers_whole_rows:Whole 1.0"
    assert found["ddp"] == found["planned"] == "ok part of ScaleLab"


@pytest.mark.parametrize(
    ("group", "name", "row", "said"),
    [
        ("scalelab.strategies", "nameless", "Nameless", "is no Strategy of that name"),
        (
            "scalelab.strategies",
            "gone",
            "Gone",
            "cannot be loaded from offers_gone_rows",
        ),
        ("scalelab.sources", "lost", "LOST", "factory=offers_lost_rows:nowhere cannot"),
        ("scalelab.sources", "dry", "DRY", "No module named 'no_such_module'."),
    ],
)
def test_a_row_that_lacks_something_gets_a_line_with_the_remedy(
    offer: Offer,
    capsys: pytest.CaptureFixture[str],
    group: str,
    name: str,
    row: str,
    said: str,
) -> None:
    offer(group, name, row)
    assert main.run(["doctor", "--kinds"]) == 1
    line = lines(capsys)[name]
    assert line.startswith("broken")
    assert said in line
    assert line.endswith("Mend or uninstall the distribution.")


def test_it_looks_at_no_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--kinds", "--site", "x"]) == 2
    assert "leave out --site" in capsys.readouterr().err
