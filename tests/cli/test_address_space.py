"""A process that may use no more memory, as a limit of a login node makes it.

The limit itself is a stand-in here: under a real one the loader fails on some machines,
and on others OpenBLAS waits for memory.
"""

import pytest

from scalelab import session
from scalelab.cli.main import run


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 2.3 GiB for an array"),
        ImportError("x.so: failed to map segment from shared object"),
    ],
)
def test_that_no_memory_is_left_is_said(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(directory: object) -> None:
        raise error

    monkeypatch.setattr(session, "load", load)
    assert run(["recommend", "runs/small"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: This process may not use more memory.")


def test_a_module_that_is_missing_is_another_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(directory: object) -> None:
        raise ImportError("No module named 'x'")

    monkeypatch.setattr(session, "load", load)
    with pytest.raises(ImportError, match="No module named"):
        run(["recommend", "runs/small"])
