"""The files whose change makes a rank server start anew."""

import sys
from pathlib import Path

import pytest

from scalelab.launch.ranks.server import watched_files


def test_blocked_and_replaced_modules_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("own_module")
    monkeypatch.setitem(sys.modules, "blocked", None)
    monkeypatch.setitem(sys.modules, "replaced", object())
    assert str(tmp_path / "own_module.py") in watched_files()
    monkeypatch.delitem(sys.modules, "own_module")
