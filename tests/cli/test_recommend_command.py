import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measured_runs import COMMAND, EMULATED, completed, failed, measured_run
from sentences import Golden

from scalelab.experiment.trial import Trial
from scalelab.records.attempt import AttemptResult
from scalelab.session import load


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of a command on SLURM nodes of 4 GPUs, 1 to 16 of them."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "train.py").write_text("")
    return measured_run(folder / "run", COMMAND).directory


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run on 1 and 2 devices of this machine."""
    return measured_run(tmp_path_factory.mktemp("small") / "run").directory


@pytest.mark.slow
def test_the_answer_comes_first(scalelab: Callable[..., Any], swept: Path) -> None:
    ended = scalelab("recommend", swept)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("Use ")
    assert "A100" in lines[0]
    assert "Law:" not in ended.out
    assert ended.out.isascii()


@pytest.mark.slow
def test_explanations_follow_the_answer(scalelab: Any, swept: Path) -> None:
    plain, explained = (
        scalelab("recommend", swept, *options).out for options in ((), ("--explain",))
    )
    assert explained.startswith(plain)
    rest = explained.removeprefix(plain)
    assert "Law: scalelab." in rest
    assert "parameter" in rest


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--price", "2usd", "--max-cost", "1usd")])
def test_json_is_json(
    scalelab: Callable[..., Any], swept: Path, options: tuple[Any, ...]
) -> None:
    ended = scalelab("recommend", swept, "--json", *options)
    answer = json.loads(ended.out, parse_constant=refuse)
    assert answer["schema"] == "scalelab.answer/1"
    assert answer["question"]["command"] == "recommend"
    assert ("max_cost" in answer["question"]) is bool(options)
    assert "times_contain" in {fact["kind"] for fact in answer["facts"]}
    assert {*answer["notes"]} < {*answer["text"]}
    assert answer["meets_constraints"] is (not options)
    assert ended.code == (4 if options else 0)
    assert sum(row["is_chosen"] for row in answer["rows"]) == 1
    assert {row["world_size"] for row in answer["rows"]} >= {1, 2, 4, 8, 16}
    assert ended.err == ""


@pytest.mark.slow
def test_constraints_are_held_or_the_closest_is_shown(
    scalelab: Any, swept: Path
) -> None:
    fast = scalelab("recommend", swept, "--max-time", "30d")
    assert fast.code == 0
    chance = "Chance of meeting < 30 days: > 99% if 90 epochs suffice at batch"
    assert chance in " ".join(fast.out.split())
    never = scalelab("recommend", swept, "--max-time", "1s")
    assert never.code == 4
    assert never.out.startswith("Nothing meets < 1")
    assert "Closest:" in never.out


@pytest.mark.slow
def test_another_job_may_be_meant(scalelab: Any, swept: Path) -> None:
    own = scalelab("recommend", swept, "--json")
    more = scalelab("recommend", swept, "--json", "--samples", "9e7")
    hours = [json.loads(e.out)["rows"][0]["gpu_hours"]["value"] for e in (own, more)]
    assert math.isclose(hours[1], 10 * hours[0], rel_tol=0.01)
    first_line = scalelab("recommend", swept).out.splitlines()[0]
    epochs = ("--epochs", 90, "--samples-per-epoch", 100_000)
    for same in (epochs, epochs[:2]):  # an epoch is of the run's own samples
        assert scalelab("recommend", swept, *same).out.splitlines()[0] == first_line


@pytest.mark.slow
def test_further_devices_may_be_asked_about(
    scalelab: Callable[..., Any], swept: Path
) -> None:
    answer = json.loads(scalelab("recommend", swept, "--gpus", "32", "--json").out)
    assert [r["world_size"] for r in answer["rows"]] == [1, 2, 4, 8, 16, 32]
    assert answer["rows"][-1]["basis"] == "extrapolated"
    assert answer["rows"][-1]["allocation"] == "8x4"


@pytest.mark.slow
def test_a_job_script_for_one_node(
    scalelab: Callable[..., Any], swept: Path, golden: Golden
) -> None:
    ended = scalelab("recommend", swept, "--sbatch", "--max-time", "30d")
    assert (ended.code, ended.err) == (0, "")
    golden(ended.out)
    assert "#SBATCH --nodes=1\n" in ended.out
    assert ended.out.endswith(" --out .\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        ("small", ("--sbatch",), "scheduler=local, which has no job script"),
        ("swept", ("--site", "nowhere", "--sbatch"), "no site is called 'nowhere'"),
        ("swept", ("--site", "nowhere"), "whose job script is printed. Add --sbatch"),
        ("swept", ("--max-cost", "3usd"), "price"),
        ("swept", ("--price", "-2usd"), "'-2usd' is not a price"),
        ("swept", ("--max-time", "4"), "'4' is not a duration"),
        ("swept", ("--max-time", ""), "'' is not a duration"),
        ("swept", ("--max-gpu-hours", "0gpu-h"), "is not a GPU time"),
        ("swept", ("--target", "val_acc"), "'val_acc' is not a target"),
        ("swept", ("--target", ""), "'' is not a target"),
        ("swept", ("--target", "typo_acc>=0.9"), "No run evaluated typo_acc, nor any"),
        ("swept", ("--gpus", "8,x"), "--gpus '8,x' is not a list of device counts"),
        ("swept", ("--gpus", "1-8"), "Write, for example, --gpus 1,2,4,8."),
        ("swept", ("--gpus", "3..20"), "Write, for example, --gpus 3,6,12,20."),
        ("swept", ("--gpus", "8-1"), "Write, for example, --gpus 8,16,32."),
        ("swept", ("--confidence", "90"), "--confidence: 90 must be less than 1. Writ"),
        ("swept", ("--confidence", "nan"), "--confidence=nan must be a finite number"),
        ("small", ("--epochs", "9"), "nothing says how many samples an epoch has. Add"),
        (
            "swept",
            ("--epochs", "9", "--samples", "9"),
            "Error: --epochs and --samples both say how long the job is.",
        ),
        ("swept", ("--gpus", "0"), "--gpus '0' is not a list of device counts"),
        ("swept", ("--gpus", "1" + 40 * "0"), "device counts from 1 to 1,000,000"),
        ("swept", ("--gpus", ""), "--gpus '' is not a list of device counts"),
        ("swept", ("--confidence", "1.5"), "confidence=1.5"),
        ("swept", ("--confidence", "nan"), "confidence=nan"),
        ("swept", ("--epochs", "-3", "--samples-per-epoch", "9"), "epochs"),
        ("swept", ("--samples", "0"), "samples"),
        ("swept", ("--samples", "1.5"), "'--samples': '1.5' is not a whole number."),
        ("swept", ("--steps", "-1"), "steps"),
        ("swept", ("--select", "precision"), "--select 'precision' is not NAME=VALUE"),
        ("swept", ("--select", "colour=red"), "colour"),
        ("swept", ("--select", "precision=fp64"), "precision"),
        ("swept", ("--law", "murphy"), "murphy"),
    ],
)
def test_bad_options_are_refused_in_one_paragraph(
    scalelab: Callable[..., Any],
    request: pytest.FixtureRequest,
    run: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    directory: Path = request.getfixturevalue(run)
    before = sorted(directory.rglob("*"))
    ended = scalelab("recommend", directory, *options)
    ended.assert_refused()
    assert message in ended.err
    after = sorted(directory.rglob("*"))
    assert {path for path in after if "cache" not in path.parts} <= {*before}


@pytest.mark.slow
def test_what_cannot_be_run_here_is_not_proposed(
    scalelab: Callable[..., Any], small: Path
) -> None:
    out = scalelab("recommend", small, "--explain").out
    assert "The trial that would change the answer" not in out
    assert "Not identifiable" not in out
    for words in ((), ("--gpus", "8")):
        asked = json.loads(scalelab("recommend", small, *words, "--json").out)
        trial = asked["next_trial"]
        assert trial is None or trial["world_size"] <= 2
        (step,) = (f for f in asked["facts"] if f["kind"] == "next_step")
        assert step["step"] == "elsewhere"
        assert step["world_size"] > 2


@pytest.mark.slow
def test_what_cannot_be_run_here_is_no_next_trial(tmp_path: Path) -> None:
    text = EMULATED.replace("gpus: [1, 2]", "gpus: [1, 2, 4]")
    text = text.replace("gpus_per_node: 2", "gpus_per_node: 4")
    answer = load(measured_run(tmp_path / "run", text).directory).recommend()
    assert answer.next_trial is None or answer.next_trial.world_size <= 4


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (("absent",), 2, "store"),
        (("absent", "--gpus", "x"), 2, "store"),
        (("absent", "--batch", "x"), 2, "usage"),
        (("run", "--batch", "0"), 2, "input"),
        (("run",), 1, "unmeasured"),
    ],
)
def test_an_error_is_json_where_an_answer_would_be(
    scalelab: Callable[..., Any],
    tmp_path: Path,
    words: tuple[str, ...],
    code: int,
    kind: str,
) -> None:
    measured_run(tmp_path / "run", ending=failed)
    ended = scalelab("recommend", tmp_path / words[0], *words[1:], "--json")
    ended.assert_refused(code)
    assert json.loads(ended.out)["kind"] == kind


def test_what_cannot_be_answered_says_so(
    scalelab: Callable[..., Any], tmp_path: Path
) -> None:
    run = measured_run(tmp_path / "run", ending=failed).directory
    ended = scalelab("recommend", run)
    ended.assert_refused(1)
    assert "step time" in ended.err


@pytest.mark.slow
def test_devices_that_failed_are_left_out(
    scalelab: Callable[..., Any], tmp_path: Path
) -> None:
    def ending(trial: Trial) -> AttemptResult:
        return completed(trial) if trial.world_size == 1 else failed(trial)

    run = measured_run(tmp_path / "run", ending=ending).directory
    ended = scalelab("recommend", run, "--json")
    assert ended.code == 0
    answer = json.loads(ended.out)
    assert answer["left_out"] == {"failed": 4}
    assert answer["num_observations"] == 8


@pytest.mark.slow
def test_only_what_is_needed_is_loaded(command: list[str], small: Path) -> None:
    code = """if True:
        import sys
        from scalelab.cli import main
        main.run(["recommend", sys.argv[1]])
        heavy = {"xgboost", "sklearn", "plotly", "torch", "distributed", "scipy.stats"}
        sys.exit(" ".join(heavy & {*sys.modules}))
    """
    ended = subprocess.run(
        [command[0], "-c", code, str(small)], capture_output=True, text=True
    )
    assert ended.stderr == "\n"
    assert ended.stdout.startswith("Use ")
