import json
import re
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_runs import outlook_row, recommendation, strong_scaling, trial_row
from report_pages import page_of

from scalelab.inputs.numerals import Interval
from scalelab.inputs.outcome import Outcome
from scalelab.recommend.answer.evidence import Evidence, Steadiness, WholeRun
from scalelab.recommend.answer.facts import Fact
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.records.attempt import AttemptResult
from scalelab.records.observations import frame
from scalelab.report.html import PLOTLY_JS

HOSTILE = "</script><script>alert('x')</script><img src=http://x.example/y>"


class Page(HTMLParser):
    """The page in parts: elements, visible text, figures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.figures: dict[str, Any] = {}
        self._inside: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(html.replace(PLOTLY_JS.read_text(encoding="utf-8"), ""))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = (tag, dict(attrs))
        self.elements.append(self._inside)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside
        if tag == "th":
            self.headings.append(data)
        if tag not in ("script", "style"):
            self.words.append(data)
        elif name := attributes.get("data-for"):
            self.figures[name] = json.loads(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def page(observations: pd.DataFrame, answered: Recommendation) -> Page:
    return Page(
        page_of(answered, observations, title="resnet", experiment_text="gpus: 1")
    )


def test_the_answer_comes_first(page: Page) -> None:
    words = page.text
    order = [
        "Use 16 A100 (4 nodes x 4), global batch 512 = 32 x 16",
        "The choices",
        "What it takes",
        "How it scales",
        "How many samples training needs",
        "What this rests on",
        "Trials",
        "Where this comes from",
    ]
    places = [words.index(part) for part in order]
    assert places == sorted(places)
    assert "gpus: 1" in words
    assert "EMULATED" not in words
    assert "2 of 33 trials ignored: other jobs ran on the node." in words
    assert "Sweep cost 6.3 GPU-h." in words


def test_what_makes_the_times_wrong_stands_before_the_grounds(
    answered: Recommendation,
) -> None:
    busy = Fact.of(
        "busy_machine", count=3, num_trials=9, load_average=5.3, cores_at_hand=2
    )
    disturbed = replace(answered, facts=(*answered.facts, busy))
    words = Page(page_of(disturbed, frame([]), title="x")).text
    (line,) = disturbed.said("machine")
    assert words.index(line) < words.index(answered.grounds[0].text)


def test_every_figure_is_on_the_page_with_its_numbers(page: Page) -> None:
    assert set(page.figures) == {
        "time_and_gpu_hours",
        "picture",
        "speedup",
        "efficiency",
        "throughput",
        "samples_to_target",
        "metric_over_time",
        "step_phases",
    }
    drawn = {
        str(attributes.get("id"))
        for tag, attributes in page.elements
        if attributes.get("class") == "plot"
    }
    assert drawn | {"picture"} == set(page.figures)
    assert page.text.count("The numbers") == len(drawn)
    assert "Not in this report" not in page.text


def test_the_page_needs_no_network(page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "srcset", "action", "poster"):
            assert name not in attributes, tag
        assert not (attributes.get("href") or "").startswith(("http", "//"))
        assert tag not in ("link", "iframe", "object", "embed", "base")
    policy = next(a["content"] for _, a in page.elements if "http-equiv" in a)
    assert (policy or "").startswith("default-src 'none'")


@pytest.mark.slow
def test_plotly_is_there_once(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    html = page_of(answered, observations, title="x")
    library = PLOTLY_JS.read_text(encoding="utf-8")
    assert html.count(library) == 1
    assert len(html.encode()) < 1_500_000


def test_plotly_is_the_packages_own() -> None:
    """The file is unchanged: its hash is the one that is said beside it."""
    said = (PLOTLY_JS.parent / "README.md").read_text()
    assert sha256(PLOTLY_JS.read_bytes()).hexdigest() in said
    version = re.search(
        r"v(\d+\.\d+\.\d+)", PLOTLY_JS.read_text(encoding="utf-8")[:200]
    )
    assert version is not None
    assert f"| {version[1]} | MIT, see `LICENSE` |" in said


@pytest.mark.slow
def test_untrusted_text_stays_text(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    bad = trial_row(
        2,
        8,
        outcome="failed",
        reason=HOSTILE,
        trial_id="bad",
        workload=HOSTILE,
        device_name=HOSTILE,
        step_time_s=None,
        throughput_samples_per_s=None,
        versions=HOSTILE,
        hosts=[HOSTILE],
    )
    rows = frame([bad, trial_row(1, 8, workload=HOSTILE)])
    result = AttemptResult(
        outcome=Outcome.FAILED, reason=HOSTILE, traceback=HOSTILE, log=HOSTILE
    )
    setting = {"setting": HOSTILE, "value": HOSTILE}
    hostile = replace(
        answered,
        workload=HOSTILE,
        device_name=HOSTILE,
        facts=(Fact("accuracy_alike", setting),),
    )
    usual = Page(page_of(answered, observations, title="x", experiment_text="x"))
    page = Page(
        page_of(
            hostile,
            rows,
            title=HOSTILE,
            experiment_text=HOSTILE,
            results={("bad", 1): result},
        )
    )
    assert page.count("img") == 0
    num_plots = len(page.figures)
    assert page.count("script") - num_plots == usual.count("script") - 8
    assert page.text.count(HOSTILE) >= 7
    for figure in page.figures.values():
        assert "<script" not in json.dumps(figure)


@pytest.mark.slow
def test_emulated_runs_are_labelled_at_the_top_and_in_every_figure(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    emulated = replace(
        answered,
        is_emulated=True,
        device_word="emulated GPU",
        device_hour_word="emulated GPU-h",
    )
    page = Page(page_of(emulated, observations.assign(emulated=True), title="x"))
    assert page.text.index("EMULATED: times are declared") < page.text.index("Use 16")
    for figure in page.figures.values():
        assert "EMULATED" in json.dumps(figure)


def test_a_run_of_failures_explains_itself() -> None:
    rows = [
        trial_row(
            count,
            8,
            outcome="failed",
            reason="rank 0 died by signal 9",
            step_time_s=None,
            throughput_samples_per_s=None,
            compute_s=None,
        )
        for count in (1, 2)
    ]
    page = Page(page_of(None, frame(rows), title="x"))
    assert "No recommendation. Nothing to recommend from. 2 attempts: 2 failed." in (
        page.text
    )
    assert "rank 0 died by signal 9" in page.text
    assert not page.figures
    assert "Not in this report" in page.text


@pytest.mark.slow
def test_the_reason_given_for_having_no_answer_is_shown(
    observations: pd.DataFrame,
) -> None:
    why = "<Say> --batch."
    html = page_of(None, observations, title="x", without_answer=why)
    assert '<p>&lt;Say&gt; <span class="option">--batch</span>.</p>' in html
    page = Page(page_of(None, observations, title="x", without_answer="Say which job."))
    assert "No recommendation. Say which job." in page.text
    assert "speedup" in page.figures
    assert "time_and_gpu_hours" not in page.figures
    silent = Page(page_of(None, observations, title="x"))
    assert "The figures show what was measured." in silent.text


def test_an_empty_run_says_that_nothing_was_run() -> None:
    page = Page(page_of(None, frame([]), title="x"))
    assert "Nothing has been run yet." in page.text
    assert not page.figures


@pytest.mark.slow
def test_many_failures_are_cut(rng: np.random.Generator) -> None:
    rows = strong_scaling((1, 2), rng)
    rows += [
        trial_row(
            1,
            8,
            repeat=n,
            outcome="failed",
            reason="x",
            step_time_s=None,
            throughput_samples_per_s=None,
        )
        for n in range(120)
    ]
    page = Page(page_of(None, frame(rows), title="x"))
    assert "20 more are not shown." in page.text


@pytest.mark.slow
def test_drift_stands_beside_what_the_answer_rests_on(
    answered: Recommendation,
) -> None:
    drift = Interval(value=0.1, lo=0.05, hi=0.15)
    steady = Steadiness(
        num_canaries=5,
        hours=4.0,
        drift=drift,
        is_drifting=True,
        num_hosts=1,
        slow_nodes=(),
        disturbances=(),
    )
    evidence = Evidence(steadiness=steady)
    held = replace(answered, evidence=evidence)
    for html in (
        page_of(held, frame([]), title="x"),
        page_of(None, frame([]), title="x", evidence=evidence),
    ):
        assert "How steady the machine was" in Page(html).text
        assert "The machine slowed down: the same trial took" in Page(html).text
    assert "How steady" not in page_of(answered, frame([]), title="x")


@pytest.mark.slow
def test_a_table_of_many_curves_shows_one_and_lists_the_others(
    rng: np.random.Generator,
) -> None:
    rows = [
        row
        for workload in ("a", "b", "c")
        for row in strong_scaling((1, 2), rng, workload=workload, kind="imported")
    ]
    page = Page(page_of(None, frame(rows), title="x"))
    assert (
        "3 curves were measured. The figures show one of them: a on A100" in page.text
    )
    assert "18 imported rows: 18 completed." in page.text


def test_whole_runs_and_memory_are_reported_where_measured(
    answered: Recommendation,
) -> None:
    out = {"outcome": "out_of_memory", "reason": "no room"}
    unmeasured = {"step_time_s": None, "throughput_samples_per_s": None}
    rows = frame([trial_row(1, 8), trial_row(1, 9999, **out, **unmeasured)])
    run = WholeRun(
        world_size=1, global_batch_size=512, measured_s=100.0, predicted_s=90.0
    )
    found = replace(answered, evidence=Evidence(whole_runs=(run,)))
    page = Page(page_of(found, rows, title="x"))
    assert "Predicted and measured time to target" in page.text
    assert "What fits in memory" in page.text


@pytest.mark.slow
def test_cost_and_probability_stand_beside_the_time(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    cost = Interval(value=12.5, lo=12.0, hi=13.0)
    rows = tuple(
        replace(row, amounts={**row.amounts, "money": cost}, probability=0.87)
        for row in answered.rows
    )
    limited = replace(answered, rows=rows, limits=("< 4 h",))
    page = Page(page_of(limited, observations, title="x"))
    assert "usd 12.5" in page.text
    assert "chance of < 4 h 87%" in page.text


def test_one_trial_makes_no_curve() -> None:
    answer = recommendation([outlook_row(1, 64, is_chosen=True)])
    page = Page(page_of(answer, frame([trial_row(1, 64)]), title="x"))
    assert set(page.figures) <= {"picture", "step_phases"}
    assert "There is one number of devices only: a curve needs two." in page.text


def test_nothing_interactive_is_hidden_in_an_image(page: Page) -> None:
    """Plotly puts buttons into the element of a figure: no image holds those."""
    roles = [a.get("role") for _, a in page.elements if a.get("class") == "plot"]
    assert roles == ["group"] * (len(page.figures) - 1)  # but for the picture


def test_tables_have_the_words_of_the_field(page: Page) -> None:
    for name in ("num nodes", "time hi", "(s)", "gpu hours", "True", "is "):
        assert f"{name} " not in " ".join(page.headings)
    assert "device time, from and to" in page.headings
    assert "worth considering" in page.headings


@pytest.mark.slow
def test_figures_share_the_unit_of_the_headline(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    def small(row: OutlookRow) -> OutlookRow:
        amounts = {
            name: amount
            and Interval(
                value=amount.value / 1e6, lo=amount.lo / 1e6, hi=amount.hi / 1e6
            )
            for name, amount in row.amounts.items()
        }
        return replace(row, amounts=amounts)

    tiny = replace(answered, rows=tuple(map(small, answered.rows)))
    page = Page(page_of(tiny, observations, title="x"))
    for figure in (
        page.figures["time_and_gpu_hours"]["layout"],
        page.figures["picture"],
    ):
        drawn = json.dumps(figure)
        assert "GPU-s" in drawn
        assert "GPU-h" not in drawn
        assert "e-0" not in drawn
