"""Other names of options, other ways to write values, and names that mislead."""

import json
from pathlib import Path

import pytest
from measured_runs import EMULATED, measured_run

from scalelab.cli.main import run
from scalelab.session import load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    measured_run(tmp_path / "runs" / "small", EMULATED)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("--deadline 1h", "--max-time 1h"),
        ("--budget 5usd --price 1usd", "--max-cost 5usd --price 1usd"),
        ("--max-time 1h --confidence 80%", "--max-time 1h --confidence 0.8"),
    ],
)
def test_they_ask_the_same(
    words: str, others: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for asked in (words, others):
        assert run(["recommend", "runs/small", "--json", *asked.split()]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]


def test_python_knows_them_too(home: Path) -> None:
    answer = load("runs/small")
    asked = answer.recommend(budget="5usd", price="1usd").to_dict()
    assert asked == answer.recommend(max_cost="5usd", price="1usd").to_dict()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("recommend runs/small --epochs ninety", "'ninety' is not a number"),
        ("recommend runs/small --confidence high", "such as 0.9 or 90%."),
        ("recommend runs/small --pool 1.5", "'1.5' is not a whole number"),
        ("import table.csv --header-row x", "'x' is not a whole number"),
        ("recommend small", "Give the directory of a run. Runs are runs/small."),
        ("recommend smal", "Give the directory of a run. Runs are runs/small."),
        ("recommend runs", "Give the directory of a run. Runs are runs/small."),
        (
            "recommend runs/small --confidence 150%",
            "=1.5 must be less than 1",
        ),
        ("report runs/small -o x.pdf", "x.pdf: a report is one HTML file"),
        ("init --from table.csv", "'table.csv' does nothing when it runs"),
    ],
)
def test_what_misleads_is_refused(
    words: str, message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "table.csv").write_text("gpus, batch\n1, 2\n")
    before = sorted(home.iterdir())
    assert run(words.split()) == 2
    assert message in capsys.readouterr().err
    assert sorted(home.iterdir()) == before
