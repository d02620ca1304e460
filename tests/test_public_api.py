import importlib.metadata
import re
from pathlib import Path

import pytest

import scalelab


def test_public_names_are_what_can_be_imported() -> None:
    assert len(scalelab.__all__) == len({*scalelab.__all__})
    for name in scalelab.__all__:
        assert getattr(scalelab, name) is not None
    assert dir(scalelab) == sorted(scalelab.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'recomend'"):
        _ = scalelab.recomend


def test_version_is_stated_once_and_heads_the_changelog() -> None:
    assert importlib.metadata.version("scalelab") == scalelab.__version__
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest
    assert newest[1] == scalelab.__version__


def test_types_are_shipped() -> None:
    assert (Path(scalelab.__file__).parent / "py.typed").is_file()
