import pytest

from scalelab.kinds.sources import SOURCES, Source
from scalelab.testing.sources import SourceContract


class TestPlanned(SourceContract):
    @pytest.fixture
    def row(self) -> Source:
        return SOURCES["planned"]
