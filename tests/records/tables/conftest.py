from __future__ import annotations

from collections.abc import Iterator

import pytest

from scalelab.inputs.wording import of_the_command_line


@pytest.fixture(autouse=True)
def words() -> Iterator[None]:
    """Read messages and notes as the command line prints them."""
    with of_the_command_line():
        yield
