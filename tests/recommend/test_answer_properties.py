"""What holds of every answer, tried on generated tables through import and question."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from generated_tables import (
    BATCHES,
    DOUBLINGS,
    MAKERS,
    Configuration,
    GeneratedTable,
    grid,
    random_machine,
)
from imported_tables import configuration, imported

from scalelab.recommend.advice import Comparison
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.prediction.outlook import Outlook

KINDS = tuple(MAKERS)
USUAL = "plain"
SEEDS = (1, 2)
PASSES = 2000  # over the largest global batch


def table(kind: str, seed: int) -> GeneratedTable:
    return MAKERS[kind](kind, np.random.default_rng([seed, KINDS.index(kind)]))


class Question:
    """A question about some rows of a table; its limit is relative to what they show.

    The limit is a share of the fastest measured time, or of the fewest device-hours.
    """

    def __init__(self, rows: pd.DataFrame, home: Path) -> None:
        self.rows, self.home = rows, home
        self.run = imported(rows, home)
        self.samples = int(rows["global_batch"].max()) * PASSES
        time_s = rows["step_time_s"] * self.samples / rows["global_batch"]
        self.fastest_s = float(time_s.min())
        self.least_gpu_hours = float((time_s * rows["gpus"]).min()) / 3600

    def deadline(self, factor: float, **asked: Any) -> Recommendation:
        return self._ask(max_time=f"{factor * self.fastest_s:.9g}s", **asked)

    def budget(self, factor: float, **asked: Any) -> Recommendation:
        return self._ask(max_gpu_hours=factor * self.least_gpu_hours, **asked)

    def anything(self, **asked: Any) -> Recommendation:
        return self._ask(**asked)

    def both(self) -> Iterator[Recommendation]:
        for ask in (self.deadline, self.budget):
            for factor in (1.1, 2.5):
                yield ask(factor)

    def _ask(self, rows: pd.DataFrame | None = None, **asked: Any) -> Recommendation:
        sizes = asked.pop("gpus", sorted({int(n) for n in self.rows["gpus"]}))
        run = self.run if rows is None else imported(rows, self.home)
        return run.recommend(job={"samples": self.samples}, gpus=sizes, **asked)


def near(rows: pd.DataFrame, nodes: int = 2) -> pd.DataFrame:
    """Return the rows on few nodes, of which a user asks for more."""
    return rows[rows["nodes"] <= nodes].reset_index(drop=True)


def a_grid(home: Path, seed: int = 5, repeats: int = 1) -> Question:
    rng = np.random.default_rng(seed)
    machine = random_machine(rng)
    asked = list(grid(machine, DOUBLINGS[:4], BATCHES[:3]))
    made = GeneratedTable.measure("grid", machine, asked, rng, repeats=repeats)
    return Question(made.rows, home)


def every_table() -> pytest.MarkDecorator:
    """Parametrize by kind of table and seed; most are left to `make test-all`."""
    slow = (pytest.mark.slow, pytest.mark.repetition)
    cases = [
        pytest.param(kind, seed, marks=() if kind == USUAL and seed == 1 else slow)
        for kind in KINDS
        for seed in SEEDS
    ]
    return pytest.mark.parametrize(("kind", "seed"), cases)


@pytest.mark.slow
@every_table()
def test_a_chosen_batch_is_a_measured_one_or_between_two(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rows = near(table(kind, seed).rows)
    for answer in Question(rows, tmp_path).both():
        batch = answer.chosen.batch
        total, local = batch.global_batch_size, batch.local_batch_size
        assert rows["global_batch"].min() <= total <= rows["global_batch"].max()
        assert local <= rows["local_batch"].max()
        parts = local * batch.data_parallel_size * batch.gradient_accumulation_steps
        assert parts == total


@pytest.mark.slow
@every_table()
def test_a_measured_row_is_shown_or_beaten_on_its_devices(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rows = near(table(kind, seed).rows)
    question = Question(rows, tmp_path)
    measured = rows.groupby(["gpus", "nodes", "local_batch", "accum_steps"])
    spans = measured["step_time_s"].agg(["min", "max"]).reset_index()
    for answer in question.both():
        shown = {row.world_size: row for row in answer.rows}
        for each in spans.itertuples(index=False):
            at = Configuration(*map(int, each[:4]))
            row = shown[at.gpus]
            slowest_s = each.max * question.samples / at.global_batch
            assert configuration(row) == at or row.time_s.lo <= slowest_s


@pytest.mark.slow
@every_table()
def test_a_looser_limit_is_never_worse(kind: str, seed: int, tmp_path: Path) -> None:
    question = Question(near(table(kind, seed).rows), tmp_path)
    tie = 1.05 * 1.01  # below it a measured or faster one wins, which another beats
    for ask, name in ((question.deadline, "gpu_hours"), (question.budget, "time_s")):
        met, least = False, np.inf
        for factor in (0.8, 1.05, 1.3, 2.0, 6.0):
            answer = ask(factor)
            assert answer.meets_constraints >= met
            met = answer.meets_constraints
            if met:
                value = getattr(answer.chosen, name).value
                assert value <= tie * least
                least = min(least, value)


@pytest.mark.slow
@every_table()
def test_the_order_of_rows_means_nothing(kind: str, seed: int, tmp_path: Path) -> None:
    rows = near(table(kind, seed).rows)
    question = Question(rows, tmp_path)
    mixed = rows.sample(frac=1.0, random_state=seed)
    assert_same(question.deadline(1.5), question.deadline(1.5, rows=mixed))


@pytest.mark.slow
@every_table()
def test_a_column_that_follows_from_the_configuration_means_nothing(
    kind: str, seed: int, tmp_path: Path
) -> None:
    rows = near(table(kind, seed).rows)
    question = Question(rows, tmp_path)
    first_s = rows["step_time_s"].iloc[0]
    per_device = rows["local_batch"] * rows["accum_steps"]
    told = rows.assign(
        memory_gib=1.5 + 0.01 * rows["local_batch"],
        efficiency=(per_device / rows["step_time_s"]).round(3),
        speedup=(first_s / rows["step_time_s"]).round(3),
        n_rep=1,
    )
    assert_same(question.deadline(1.5), question.deadline(1.5, rows=told))


@pytest.mark.slow
@every_table()
def test_what_else_is_asked_changes_no_row(
    kind: str, seed: int, tmp_path: Path
) -> None:
    question = Question(near(table(kind, seed).rows), tmp_path)
    sizes = sorted({int(n) for n in question.rows["gpus"]})
    alone = question.deadline(1.5, gpus=sizes)
    beside = question.deadline(1.5, gpus=[*sizes, 4 * max(sizes), 8 * max(sizes)])
    shown = {row.world_size: row for row in beside.rows}
    for row in alone.rows:
        assert configuration(shown[row.world_size]) == configuration(row)
        assert_near(shown[row.world_size], row)


@pytest.mark.repetition
@pytest.mark.slow
@pytest.mark.parametrize("repeats", [1, 2])
def test_more_repeats_of_the_same_value_never_widen(
    repeats: int, tmp_path: Path
) -> None:
    question = a_grid(tmp_path, repeats=repeats)
    more = pd.concat([question.rows] * 3, ignore_index=True)
    once, often = question.deadline(1.5), question.deadline(1.5, rows=more)
    for before, after in zip(once.rows, often.rows, strict=True):
        assert width(after) <= 1.02 * width(before)


@pytest.mark.repetition
@pytest.mark.slow
def test_times_may_be_given_in_another_unit(tmp_path: Path) -> None:
    question = a_grid(tmp_path)
    rows = question.rows
    rate = rows["global_batch"] / rows["step_time_s"]
    expected = question.deadline(1.5)
    told = rows.drop(columns="step_time_s").assign(samples_per_s=rate)
    assert_same(expected, question.deadline(1.5, rows=told))
    told = rows.drop(columns="step_time_s").assign(
        step_time_ms=1000 * rows["step_time_s"]
    )
    assert_same(expected, question.deadline(1.5, rows=told))


@pytest.mark.slow
@every_table()
def test_no_chosen_row_is_beaten(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Comparison] = []
    compare = Comparison.of

    def kept(*args: Any, **named: Any) -> Comparison:
        found.append(compare(*args, **named))
        return found[-1]

    monkeypatch.setattr(Comparison, "of", kept)
    question = Question(near(table(kind, seed).rows), tmp_path)
    rng = np.random.default_rng(seed)
    answers = [question.anything(price_per_gpu_hour_usd=2.0)]
    for _ in range(4):
        ask = question.deadline if rng.integers(2) else question.budget
        sure = float(rng.choice([0.5, 0.8, 0.9, 0.95]))
        answers.append(ask(float(rng.uniform(1, 6)), confidence=sure))
    for answer, comparison in zip(answers, found, strict=True):
        assert beaten_by(comparison.printed, comparison.choice.index, answer) == []


@pytest.mark.slow
def test_what_is_much_faster_for_little_more_is_said_first(tmp_path: Path) -> None:
    rates = {1: 1500, 2: 2920, 4: 5730, 8: 11290, 16: 21550}
    rows = pd.DataFrame(
        {"gpus": n, "nodes": 1, "local_batch": 1, "accum_steps": 1, "global_batch": n}
        | {"workload": "made", "gpu_type": "V100", "step_time_s": n / rates[n]}
        for n in rates
    )
    answer = Question(rows, tmp_path).deadline(40)
    (fact,) = (each.values for each in answer.facts if each.kind == "faster")
    shown = {row.world_size: row for row in answer.rows}
    chosen, faster = answer.chosen, shown[fact["world_size"]]
    assert fact["speedup"] == pytest.approx(chosen.time_s.value / faster.time_s.value)
    assert fact["speedup"] >= 1.5
    assert 1.05 < fact["cost_ratio"] <= 1.1
    said = f"and not {fact['world_size']}: {fact['world_size']} are "
    assert f"{said}{fact['speedup']:.2f} times as fast for " in repr(answer)[:400]


@pytest.mark.slow
def test_the_edge_of_what_pays_is_named_without_limits(tmp_path: Path) -> None:
    seconds = {1: 1.0, 2: 0.52, 4: 0.3035, 8: 0.29}
    rows = pd.DataFrame(
        {"gpus": n, "nodes": 1, "local_batch": 64 // n, "accum_steps": 1}
        | {"workload": "made", "gpu_type": "V100", "step_time_s": s * scatter}
        | {"global_batch": 64}
        for n, s in seconds.items()
        for scatter in (0.97, 1.03)
    )
    answer = Question(rows, tmp_path).anything(gpus=[1, 2, 4, 8])
    (fact,) = (each.values for each in answer.facts if each.kind == "on_the_edge")
    assert {fact["world_size"], answer.chosen.world_size} == {2, 4}
    assert 0.4 <= fact["probability"]
    assert "that every doubling pays." in " ".join(answer.sentences)


def beaten_by(printed: Outlook, at: int, answer: Recommendation) -> list[int]:
    """Return the rows that beat one: the rule of the answer, said once more."""
    time, hours = printed.spent.time_s, printed.spent.gpu_hours
    better = []
    for i, row in enumerate(answer.rows):
        sure = row.probability is None or row.probability >= answer.confidence
        for one, other in ((time, hours), (hours, time)):
            share = float(np.mean(one[:, i] <= 0.95 * one[:, at]))
            worse = np.median(other[:, i]) / np.median(other[:, at]) - 1
            if sure and row.is_eligible and share >= 0.9 and worse <= 0.01:
                better.append(row.world_size)
    return better


def width(row: OutlookRow) -> float:
    return float(np.log(row.time_s.hi / row.time_s.lo))


def assert_near(found: OutlookRow, expected: OutlookRow) -> None:
    for name in ("value", "lo", "hi"):
        assert getattr(found.time_s, name) == pytest.approx(
            getattr(expected.time_s, name), rel=1e-6
        )
    assert found.probability == pytest.approx(expected.probability, abs=1e-6)


def assert_same(found: Recommendation, expected: Recommendation) -> None:
    assert configuration(found.chosen) == configuration(expected.chosen)
    assert found.meets_constraints == expected.meets_constraints
    for one, other in zip(found.rows, expected.rows, strict=True):
        assert configuration(one) == configuration(other)
        assert_near(one, other)


@pytest.mark.slow
@every_table()
def test_the_baseline_is_its_own_measure(kind: str, seed: int, tmp_path: Path) -> None:
    rows = near(table(kind, seed).rows)
    for answer in Question(rows, tmp_path).both():
        bases = [row for row in answer.rows if row.is_baseline]
        assert [row.world_size for row in bases] == [rows["gpus"].min()]
        for row in bases:
            share = row.scaling_efficiency
            assert share.lo <= 1.0 <= share.hi or row.basis != "measured"


@pytest.mark.slow
@every_table()
def test_a_setting_may_have_any_name(kind: str, seed: int, tmp_path: Path) -> None:
    plain = near(table(kind, seed).rows)
    slower = plain.assign(step_time_s=1.3 * plain["step_time_s"])
    answers: dict[str, list[Any]] = {"framework": [], "zzz": []}
    for name, found in answers.items():
        rows = pd.concat([plain.assign(**{name: "a"}), slower.assign(**{name: "b"})])
        run = imported(rows.reset_index(drop=True), tmp_path, axis=[name])
        for value in ("a", "b"):
            answer = run.recommend(job={"samples": 10**7}, select={name: value})
            found.append([(configuration(r), r.time_s, r.basis) for r in answer.rows])
    assert answers["framework"] == answers["zzz"]
