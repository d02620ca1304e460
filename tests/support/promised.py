"""What a test needs of the machine that this run may have promised."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test, or fail it where CI promised what is missing."""
    if os.environ.get("SCALELAB_REQUIRE_PROGRAMS"):
        pytest.fail(f"{reason}, though this run promises it")
    pytest.skip(reason)
