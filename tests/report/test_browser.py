"""The report in a real browser: figures drawn, no error, nothing fetched."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from made_up_runs import around, planned, recommendation, trial_row
from report_pages import page_of

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

# Says whether the page is as wide as its frame, whether the choices scroll, what their
# box is called, and how far from its left edge the first column is after scrolling.
PROBE = """<script>
  const box = document.querySelector("table.choices").parentElement;
  const first = box.querySelector("tr.chosen td");
  box.scrollLeft = 100;
  box.focus();
  const known = [
    document.documentElement.scrollWidth <= innerWidth ? "fits" : "spills",
    box.scrollWidth > box.clientWidth && box.scrollLeft > 0 ? "scrolls" : "stands",
    document.activeElement.getAttribute("aria-label"),
    Math.round(first.getBoundingClientRect().left - box.getBoundingClientRect().left),
  ];
  parent.postMessage(known.join(", "), "*");
</script>"""
Open = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def open_page(tmp_path: Path, require_program: Callable[[str], str]) -> Open:
    """Open a file in Chromium; every request would go to a closed port."""
    chromium = require_program("chromium")

    def run(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                chromium,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--proxy-server=127.0.0.1:9",
                "--enable-logging=stderr",
                f"--log-net-log={tmp_path / 'net.json'}",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--virtual-time-budget=5000",
                *options,
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )

    return run


@pytest.fixture
def report(
    tmp_path: Path, observations: pd.DataFrame, answered: Recommendation
) -> Path:
    path = tmp_path / "report.html"
    rows = pd.concat(
        [observations, frame([trial_row(1, 8, outcome="failed", reason="x")])],
        ignore_index=True,
    )
    path.write_text(page_of(answered, rows, title="resnet"))
    return path


def test_every_figure_is_drawn_without_an_error(open_page: Open, report: Path) -> None:
    page = open_page(report, "--dump-dom")
    console = [line for line in page.stderr.splitlines() if "CONSOLE" in line]
    assert not console
    drawn = re.findall(
        r'<div class="plot[^"]*js-plotly-plot"[^>]*id="(\w+)"', page.stdout
    )
    assert len(drawn) == 7
    assert page.stdout.count('class="main-svg"') >= len(drawn)
    assert "law, extrapolated" in page.stdout
    assert page.stdout.count('class="scatterlayer') >= 6


def test_nothing_is_fetched(open_page: Open, report: Path, tmp_path: Path) -> None:
    control = tmp_path / "control.html"
    control.write_text('<img src="http://x.example/y">')
    open_page(control, "--dump-dom")
    assert "http://x.example" in requested_hosts(tmp_path)
    open_page(report, "--dump-dom")
    # Chromium itself looks for updates and the time; the page has no part in these
    own = (".google.com", ".googleapis.com", ".gvt1.com")
    assert not {host for host in requested_hosts(tmp_path) if not host.endswith(own)}


def requested_hosts(tmp_path: Path) -> set[str]:
    log = (tmp_path / "net.json").read_text()
    return set(re.findall(r'"url":"(https?://[^"/]+)', log))


@pytest.mark.parametrize(("width", "name"), [(1200, "desktop"), (500, "phone")])
def test_figures_fit_the_window(
    open_page: Open, report: Path, tmp_path: Path, width: int, name: str
) -> None:
    probe = report.read_text().replace(
        "</body>",
        "<script>document.title = [...document.querySelectorAll('.main-svg')]"
        ".every(e => e.getBoundingClientRect().right <= innerWidth) &&"
        " document.documentElement.scrollWidth <= innerWidth"
        " ? 'fits' : 'spills'</script></body>",
    )
    path = tmp_path / f"{name}.html"
    path.write_text(probe)
    page = open_page(path, "--dump-dom", f"--window-size={width},2000")
    assert "<title>fits</title>" in page.stdout


@pytest.mark.parametrize(
    "width", [390, pytest.param(1100, marks=pytest.mark.repetition)]
)
def test_a_wide_table_of_choices_scrolls_in_its_own_box(
    open_page: Open, observations: pd.DataFrame, tmp_path: Path, width: int
) -> None:
    columns = {
        "probability": 0.93,
        "amounts": {"money": around(1234.0, 0.1)},
        "throughput_tokens_per_s": around(1234567.0, 0.1),
        "flops_utilization": around(0.43, 0.1),
    }
    rows = planned((1, 2, 4, 8, 16, 32), chosen=16, measured_up_to=16, **columns)
    report = tmp_path / "wide.html"
    report.write_text(page_of(recommendation(rows), observations, title="resnet"))
    report.write_text(report.read_text().replace("</body>", f"{PROBE}</body>"))
    # No window of a browser is as narrow as a telephone, but a frame is.
    page = tmp_path / "page.html"
    page.write_text(
        f"<script>onmessage = event => document.title = event.data</script>"
        f"<iframe src='{report.as_uri()}' width={width} height=800></iframe>"
    )
    dumped = open_page(page, "--dump-dom", "--window-size=1300,900").stdout
    assert "<title>fits, scrolls, The choices, 0</title>" in dumped


def test_a_run_without_an_answer_opens_too(open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(page_of(None, frame([]), title="empty"))
    page = open_page(path, "--dump-dom")
    assert "Nothing has been run yet." in page.stdout
    assert "CONSOLE" not in page.stderr
