"""What says who may use ScaleLab, and how to cite it."""

from importlib.metadata import metadata
from pathlib import Path

import yaml

from scalelab._version import __version__

ROOT = Path(__file__).parents[1]


def test_the_licence_is_named_where_people_look() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.startswith("BSD 3-Clause License")
    assert "ScaleLab contributors" in text
    known = metadata("scalelab")
    assert known["License-Expression"] == "BSD-3-Clause"
    assert known["License-File"] == "LICENSE"
    assert known["Author"] == "ScaleLab contributors"


def test_a_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] == "BSD-3-Clause"
