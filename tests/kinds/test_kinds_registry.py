import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributions import install as install_distribution
from sentences import refused

from scalelab.errors import SpecError
from scalelab.kinds.registry import Registry, imported
from scalelab.kinds.strategies import STRATEGIES


@dataclass(frozen=True)
class Colour:
    name: str


Offer = Callable[..., None]


@pytest.fixture
def colours() -> Registry[Colour]:
    return Registry("scalelab.colours", Colour, key="colour", built_in=[Colour("red")])


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install a distribution of this name that offers entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution: str, code: str, **entries: str) -> None:
        paths = {name: f"{distribution}_rows:{row}" for name, row in entries.items()}
        install_distribution(
            tmp_path, distribution, "scalelab.colours", code=code, **paths
        )

    return install


BLUE = f"from {__name__} import Colour\nBLUE = Colour('blue')\nRED = Colour('red')\n"


def test_a_row_is_found_by_its_name(colours: Registry[Colour]) -> None:
    assert colours["red"] == Colour("red")
    assert "red" in colours
    assert list(colours) == [Colour("red")]


def test_an_unknown_name_lists_the_known_ones(colours: Registry[Colour]) -> None:
    message = "colour='rde' is not known. Did you mean 'red'? Valid: red."
    with pytest.raises(SpecError, match=re.escape(message)):
        colours["rde"]
    assert "rde" not in colours


def test_an_installed_distribution_adds_a_row(
    colours: Registry[Colour], offer: Offer
) -> None:
    offer("paint", BLUE, blue="BLUE")
    assert colours["blue"] == Colour("blue")
    assert colours.names == ("red", "blue")


def test_no_distribution_replaces_what_is_built_in(
    colours: Registry[Colour], offer: Offer
) -> None:
    offer("paint2", "RED = 'not even a row'\n", red="RED")
    assert colours["red"] == Colour("red")
    assert colours.names == ("red",)


def test_two_distributions_that_offer_one_name_are_refused(
    colours: Registry[Colour], offer: Offer
) -> None:
    offer("paint3", BLUE, blue="BLUE")
    offer("paint4", BLUE, blue="BLUE")
    message = (
        "colour=blue is offered 2 times: paint3_rows:BLUE, paint4_rows:BLUE. "
        "Uninstall all but one of these distributions."
    )
    with pytest.raises(SpecError, match=re.escape(message)):
        colours["blue"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('no paint')", "cannot be loaded from dry{}_rows:BLUE: OSError"),
        ("BLUE = 3", "dry{}_rows:BLUE is no Colour of that name but 3."),
    ],
)
def test_what_is_offered_and_is_no_row_is_refused(
    colours: Registry[Colour], offer: Offer, code: str, said: str
) -> None:
    number = len(code)
    offer(f"dry{number}", code, blue="BLUE")
    with pytest.raises(SpecError, match=re.escape(said.format(number))):
        colours["blue"]


def test_a_row_may_not_go_by_another_name(
    colours: Registry[Colour], offer: Offer
) -> None:
    offer("paint5", BLUE, green="BLUE")
    with refused("kind_of_other_type", "Colour"):
        colours["green"]


def test_what_a_row_names_is_imported_when_it_is_needed() -> None:
    assert imported("scalelab.kinds.strategies:STRATEGIES") is STRATEGIES
