"""The documentation builds as a site, with every link and anchor right."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
FOLDERS = ("docs", "analysis", "experiments", "benchmarks")


def test_every_page_is_in_the_navigation() -> None:
    named = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    for folder, pattern in (("docs", "*.md"), ("analysis", "*.ipynb")):
        for page in (ROOT / folder).glob(pattern):
            assert f'"{folder}/{page.name}"' in named


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pages = tmp_path / ".site" / "pages"
    pages.mkdir(parents=True)
    for name in PAGES:
        shutil.copy(ROOT / name, pages)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, pages / name)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    site = tmp_path / ".site" / "html"
    found = json.loads((site / "search" / "search_index.json").read_text())
    text = " ".join(page["text"] for page in found["docs"])
    for words in ("doubling stops paying", "fail-if-slower", "held-back time"):
        assert words in text
    notebook = site / "analysis" / "01_how_many_gpus" / "index.html"
    assert "image/svg+xml" in notebook.read_text() or "<svg" in notebook.read_text()
