"""Two runs beside each other: how much slower, what differs, and what to use."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_runs import EMULATED, completed, measured_run
from sentences import Golden, refused

import scalelab
from scalelab.cli import main
from scalelab.experiment.trial import Trial
from scalelab.records.attempt import AttemptResult
from scalelab.session import Run

FOUR = EMULATED.replace("repeats: 2", "repeats: 4")
WAYS = FOUR.replace("job:", "parallelism: [ddp, fsdp]\njob:")
Make = Callable[..., Run]


def slower(
    share: float | Callable[[Trial], float],
    spread: float,
    rng: np.random.Generator,
    versions: Sequence[str],
) -> Callable[[Trial], AttemptResult]:
    """Return what measures steps that take longer by a share, and scatter."""

    def ending(trial: Trial) -> AttemptResult:
        found = completed(trial, versions=versions[trial.repeat % len(versions)])
        own = share(trial) if callable(share) else share
        factor = (1 + own) * float(np.exp(spread * rng.standard_normal()))
        names = ("step_time_s", "step_time_lo_s", "step_time_hi_s")
        times = {n: factor * found.measurements[n] for n in names}
        rate = found.measurements["throughput_samples_per_s"] / factor
        measured = {**found.measurements, **times, "throughput_samples_per_s": rate}
        return replace(found, measurements=measured)

    return ending


@pytest.fixture
def make(tmp_path: Path, rng: np.random.Generator) -> Make:
    """Return what makes a run whose steps take longer by a share."""

    def made(
        name: str,
        share: float | Callable[[Trial], float] = 0.0,
        spread: float = 0.01,
        text: str = FOUR,
        versions: Sequence[str] = ("{}",),
    ) -> Run:
        ending = slower(share, spread, rng, versions)
        return scalelab.load(measured_run(tmp_path / name, text, ending).directory)

    return made


def test_a_slower_run_is_told_by_its_interval(make: Make, golden: Golden) -> None:
    found = scalelab.compare(make("old"), make("new", share=0.15))
    assert found.change.lo < 0.15 < found.change.hi
    assert found.change.hi - found.change.lo < 0.1
    assert found.is_slower_by(0.05)
    assert not found.is_slower_by(0.3)
    assert found.chance_above(0.05) > 0.99 > 0.01 > found.chance_above(0.3)
    first, *_ = found.sentences
    golden(first)
    assert "longer than one of old [+1" in first


def test_the_table_has_a_row_for_each_configuration_of_both(make: Make) -> None:
    fewer = FOUR.replace("local_batch_size: [4, 8]", "local_batch_size: [8, 16]")
    old, new = make("old"), make("new", text=fewer)
    table = scalelab.compare(old, new).table
    assert table["local_batch_size"].tolist() == [8, 8]
    assert table["world_size"].tolist() == [1, 2]
    for row in table.to_dict("records"):
        for run, name in ((old, "before_s"), (new, "after_s")):
            rows = run.observations.query(
                f"world_size == {row['world_size']} and local_batch_size == 8"
            )
            logs = np.log(rows["step_time_s"].astype(float))
            assert row[name] == pytest.approx(np.exp(logs.median()))
        assert row["change"] == pytest.approx(row["after_s"] / row["before_s"] - 1)
        assert row["change_lo"] < row["change"] < row["change_hi"]


def test_a_change_that_differs_between_configurations_is_less_sure(make: Make) -> None:
    even = scalelab.compare(make("a"), make("b", 0.1)).change
    rows = make("c", 0.1)
    rows.fit_rows.frame.loc[rows.fit_rows.frame["world_size"] == 2, "step_time_s"] *= (
        1.3
    )
    uneven = scalelab.compare(make("d"), rows).change
    assert uneven.hi - uneven.lo > 2 * (even.hi - even.lo)


def test_what_else_differs_is_said(make: Make) -> None:
    before, after = (f'{{"python": "3.12", "torch": "2.{n}"}}' for n in (12, 13))
    old, new = make("old", versions=[before]), make("new", versions=[after])
    said = scalelab.compare(old, new).differences
    assert said == ("versions: torch 2.12 -> torch 2.13",)
    both = make("both", versions=[before, after])  # one of them gone on with
    said = scalelab.compare(old, both).differences
    assert said == ("versions: none -> torch 2.13",)
    assert scalelab.compare(old, old).differences == ()
    assert "Nothing else differs." in scalelab.compare(old, old).sentences


def test_both_answers_stand_beside_each_other(make: Make) -> None:
    old, new = make("old"), make("new", share=0.15)
    found = scalelab.compare(old, new, max_time="1h")
    for run, line in zip((old, new), found.sentences[2:], strict=True):
        chosen = run.recommend(max_time="1h").chosen
        assert line.startswith(f"{run.name}: ")
        assert f"global batch {chosen.batch.global_batch_size}" in line
    values = found.to_dict()["answers"]
    own = old.recommend(max_time="1h").chosen.time_s
    assert values["old"]["time_s"]["value"] == own.value


def test_a_setting_within_one_run(make: Make) -> None:
    run = make("run", lambda t: 0.2 * (t.parallelism == "fsdp"), text=WAYS)
    (found,) = run.compare("parallelism")
    assert (found.before.name, found.after.name) == (
        "parallelism=ddp",
        "parallelism=fsdp",
    )
    assert found.change.lo < 0.2 < found.change.hi
    with refused("axis_does_not_vary", "'precision'", "parallelism"):
        run.compare("precision")


def test_without_a_configuration_in_common_nothing_is_compared(make: Make) -> None:
    others = FOUR.replace("local_batch_size: [4, 8]", "local_batch_size: [16]")
    with refused("nothing_in_both"):
        scalelab.compare(make("old"), make("new", text=others))


def test_the_command_ends_with_1_only_when_the_interval_says_so(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (str(make(*each).path) for each in (("old",), ("new", 0.15)))
    for limit, code, said in (
        ("5%", 1, "new is slower by more than 5%; the chance that it is: > 99%."),
        ("30%", 0, "new is not shown to be slower by more than 30%"),
    ):
        assert main.run(["compare", old, new, "--fail-if-slower", limit]) == code
        assert said in capsys.readouterr().out
    assert main.run(["compare", old, old, "--fail-if-slower", "5%"]) == 0
    capsys.readouterr()
    assert main.run(["compare", old, new, "--json", "--fail-if-slower", "5%"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["comparisons"] == [scalelab.compare(old, new).to_dict()]
    assert "is slower by more than 5%" in printed["text"][-1]


SLEEPS = """\
import sys, time
batch = int(sys.argv[1])
for step in range(1, 10_000):
    time.sleep({pause_s} + 1e-4 * batch)
    print(f"step {{step}} samples {{step * batch}}", flush=True)
"""
SLEEPING = """\
name: sleeping
command: python train.py {local_batch_size}
launcher: none
code: {snapshot: [train.py]}
metrics: {regex: 'step (?P<step>[0-9]+) samples (?P<samples>[0-9]+)'}
measure: {long_trial: none, warmup_steps: 2, steps: 30, repeats: 3}
job: {epochs: 90, samples_per_epoch: 1000}
gpus: [1]
local_batch_size: [4, 8, 16]
site: {device_type: cpu, gpus_per_node: 2}
"""


@pytest.mark.slow
@pytest.mark.repetition
@pytest.mark.timeout(900)
def test_sweeps_of_a_program_that_sleeps_longer(tmp_path: Path) -> None:
    """Ten times: 15% longer fails at 5% and passes at 30%; equal ones never fail."""

    def swept(name: str, pause_s: float) -> Run:
        home = tmp_path / name
        home.mkdir()
        (home / "train.py").write_text(SLEEPS.format(pause_s=pause_s))
        (home / "sleeping.yaml").write_text(SLEEPING)
        return scalelab.sweep(home / "sleeping.yaml", directory=home / "run")

    told, equal = 0, 0
    for repeat in range(10):
        old, same = (swept(f"{name}{repeat}", 0.02) for name in ("old", "same"))
        new = scalelab.compare(old, swept(f"new{repeat}", 1.15 * 0.02 + 0.15e-4 * 8))
        told += new.is_slower_by(0.05) and not new.is_slower_by(0.3)
        equal += scalelab.compare(old, same).is_slower_by(0.05)
    assert told >= 9
    assert equal == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("RUN",), "compare takes two runs, or one with --axis, not 1."),
        (("RUN", "RUN", "--axis", "parallelism"), "or one with --axis, not 2."),
        (("RUN", "RUN", "--fail-if-slower", "5"), "'5' is no share. Write one such"),
        (("RUN", "RUN", "--max-time", "4"), "'4' is not a duration"),
        (("RUN", "--axis", "colour"), "--axis colour does not vary in run."),
        (("RUN", "--axis", "local_batch_size"), "scalelab recommend RUN weighs"),
    ],
)
def test_wrong_options_are_refused(
    make: Make,
    options: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make("run")
    words = [word.replace("RUN", str(run.path)) for word in options]
    assert main.run(["compare", *words]) == 2
    assert message.replace("RUN", str(run.path)) in capsys.readouterr().err
