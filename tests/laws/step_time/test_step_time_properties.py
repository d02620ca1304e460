"""What any step-time law must obey, on declared machines of all kinds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows
from scipy.special import ndtri

from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.law import StepTimeLaw

ANSWER = ["step_time_s", "step_time_lo_s", "step_time_hi_s"]
SEEDS = range(6)
BATCHES = [1, 2, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512]


def at(
    sizes: list[int], batch: int | list[int], per_node: int, **more: Any
) -> pd.DataFrame:
    nodes = [-(-n // per_node) for n in sizes]
    columns = {"world_size": sizes, "num_nodes": nodes, "local_batch_size": batch}
    return pd.DataFrame({**columns, **more})


def fitted(
    **options: float | tuple[int, ...],
) -> list[tuple[Any, pd.DataFrame, StepTimeLaw]]:
    """Machine, rows and law of each seed."""
    found = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        machine = random_machine(rng)
        rows = sweep_rows(machine, rng, **options)
        found.append((machine, rows, StepTimeLaw.fit(rows)))
    return found


@pytest.fixture(scope="module")
def swept() -> list[tuple[Any, pd.DataFrame, StepTimeLaw]]:
    return fitted(noise=0.02)


@pytest.fixture(scope="module")
def well_measured() -> list[tuple[Any, pd.DataFrame, StepTimeLaw]]:
    """Measured so well that shapes alone would be sure."""
    return fitted(batches=(4, 8, 16, 32, 64), noise=0.005)


def share_rising(law: StepTimeLaw, asked: pd.DataFrame) -> np.ndarray:
    """Share of draws in which one run of each configuration is slower than before."""
    draws = law.draws(asked, one_run=True)
    return (np.diff(draws, axis=1) > 0).mean(axis=0)


@pytest.mark.repetition
@pytest.mark.slow
def test_it_is_never_sure_that_a_larger_batch_takes_less_time(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    for machine, _, law in swept:
        per_node = machine["gpus_per_node"]
        for size in (1, 4, 16, 64):
            asked = at([size] * len(BATCHES), BATCHES, per_node)
            assert (share_rising(law, asked) > 0.15).all()
            times = law.predict(asked)["step_time_s"]
            assert (np.diff(np.log(times)) > -0.08).all()


@pytest.mark.slow
def test_it_is_never_sure_that_more_devices_do_a_step_faster(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 1024]
    for machine, _, law in swept:
        asked = at(sizes, 16, machine["gpus_per_node"])
        assert (share_rising(law, asked) > 0.25).all()
        times = np.log(law.predict(asked)["step_time_s"])
        assert (np.diff(times) > -0.03).all()


def test_more_passes_take_longer_and_less_each(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    passes = [1, 2, 3, 4, 8, 64]
    for machine, _, law in swept:
        asked = at([8] * 6, 16, machine["gpus_per_node"])
        asked["gradient_accumulation_steps"] = passes
        times = law.predict(asked)["step_time_s"].to_numpy()
        assert (np.diff(times) > 0).all()
        assert (np.diff(times / passes) <= 1e-3 * times[0]).all()
        truth = [declared_step_time(machine, 8, 16, count) for count in passes]
        assert times == pytest.approx(truth, rel=0.1)


def test_no_device_does_more_than_a_device_alone(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    for machine, _, law in swept:
        asked = at([1, 2, 4, 8, 16, 64, 4096], 16, machine["gpus_per_node"])
        answer = law.predict(asked)
        alone = answer["throughput_samples_per_s"].iloc[0]
        efficiency = answer["throughput_samples_per_s"] / asked["world_size"] / alone
        assert (efficiency > 0).all()
        assert (efficiency < 1.03).all()


def test_an_interval_is_positive_holds_its_answer_and_widens_outwards(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    sizes = [32, 64, 128, 1024, 2**20]
    for machine, _, law in swept:
        lo, middle, hi = (
            law.predict(at(sizes, 16, machine["gpus_per_node"]))[name].to_numpy()
            for name in ("step_time_lo_s", "step_time_s", "step_time_hi_s")
        )
        assert ((lo > 0) & (lo < middle) & (middle < hi) & np.isfinite(hi)).all()
        assert (np.diff(np.log(hi / lo)) > 0).all()


DOUBLINGS = np.arange(1, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "batches", "least"),
    [
        ([64, 128, 256, 512], [16] * 4, 0.06 * DOUBLINGS**0.5),
        ([16] * 4, [128, 256, 512, 1024], 0.04 * DOUBLINGS),
        (
            [64, 128, 256, 512],
            [128, 256, 512, 1024],
            np.hypot(0.06 * DOUBLINGS**0.5, 0.04 * DOUBLINGS),
        ),
    ],
    ids=["scale", "batch", "both"],
)
def test_beyond_the_measured_range_errors_grow_with_every_doubling(
    well_measured: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
    sizes: list[int],
    batches: list[int],
    least: np.ndarray,
) -> None:
    """By at least what docs/laws.md says, whatever the rows agree on."""
    for machine, _, law in well_measured:
        asked = at(sizes, batches, machine["gpus_per_node"])
        answer = law.predict(asked)
        logs = np.log(answer["step_time_hi_s"] / answer["step_time_lo_s"]).to_numpy()
        assert (logs / (2 * ndtri(0.9)) > least).all()
        assert (np.log(law.draws(asked)).std(axis=0) > 0.97 * least).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "asked_sizes"),
    [
        pytest.param(
            (1, 4, 8),
            (16, 32),
            id="one size on several nodes",
            marks=pytest.mark.repetition,
        ),
        pytest.param((1,), (2, 4), id="one device"),
    ],
)
def test_what_was_hardly_measured_has_an_interval_that_holds_the_truth(
    sizes: tuple[int, ...], asked_sizes: tuple[int, ...]
) -> None:
    inside = []
    for seed in range(14):
        rng = np.random.default_rng(seed)
        machine = {**random_machine(rng), "gpus_per_node": 4}
        rows = sweep_rows(machine, rng, sizes=sizes)
        asked = at(list(asked_sizes), 16, 4)
        answer = StepTimeLaw.fit(rows).predict(asked)
        truth = np.array([declared_step_time(machine, n, 16) for n in asked_sizes])
        assert (answer["support"] != Support.MEASURED).all()
        inside += list(
            answer["step_time_lo_s"].lt(truth) & answer["step_time_hi_s"].gt(truth)
        )
    assert np.mean(inside) > 0.74


def test_one_device_takes_what_it_computes(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    for machine, _, law in swept:
        asked = at([1] * 3, [8, 16, 32], machine["gpus_per_node"])
        truth = [declared_step_time(machine, 1, b) for b in (8, 16, 32)]
        answer = law.predict(asked)
        assert (answer["support"] == Support.MEASURED).all()
        assert answer["step_time_s"].to_numpy() == pytest.approx(truth, rel=0.04)


def test_a_change_of_the_unit_of_samples_changes_no_answer(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    machine, rows, law = swept[0]
    sizes = [1, 6, 64]
    tokens = rows.assign(local_batch_size=rows["local_batch_size"] * 1024)
    scaled = StepTimeLaw.fit(tokens).predict(
        at(sizes, 20 * 1024, machine["gpus_per_node"])
    )
    plain = law.predict(at(sizes, 20, machine["gpus_per_node"]))
    for name in ANSWER:
        assert scaled[name].to_numpy() == pytest.approx(plain[name].to_numpy())
    assert scaled["support"].equals(plain["support"])


@pytest.mark.repetition
@pytest.mark.slow
def test_no_single_row_moves_an_answer_far(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    machine, rows, law = swept[1]
    asked = at([2, 16, 64], 32, machine["gpus_per_node"])
    plain = np.log(law.predict(asked)["step_time_s"])
    for place in range(0, len(rows), 9):
        for factor in (0.2, 5.0):
            odd = rows.copy()
            odd.loc[odd.index[place], "step_time_s"] *= factor
            moved = np.log(StepTimeLaw.fit(odd).predict(asked)["step_time_s"])
            assert np.abs(moved - plain).max() < 0.05


@pytest.mark.slow
def test_an_odd_configuration_stays_alone(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    """One row each, so that no repeat outvotes the odd one."""
    machine, rows, _ = swept[1]
    single = rows.groupby(["world_size", "local_batch_size"], as_index=False).first()
    asked = at([1, 4, 32, 64], 16, machine["gpus_per_node"])
    plain = np.log(StepTimeLaw.fit(single).predict(asked)["step_time_s"])
    odd = single.copy()
    is_odd = (odd["world_size"] == 8) & (odd["local_batch_size"] == 16)
    odd.loc[is_odd, "step_time_s"] *= 4
    moved = np.log(StepTimeLaw.fit(odd).predict(asked)["step_time_s"])
    assert np.abs(moved - plain)[:3].max() < 0.05
    assert np.abs(moved - plain)[3] < 0.2


@pytest.mark.slow
def test_an_answer_does_not_depend_on_what_else_is_asked(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]],
) -> None:
    machine, rows, law = swept[2]
    many = at([1, 4, 16, 64], [12, 16, 12, 16], machine["gpus_per_node"])
    within = StepTimeLaw.fit(rows[rows["num_nodes"] == 1])
    for fitted in (law, within):
        together = fitted.predict(many)[ANSWER].to_numpy()
        drawn = [np.sort(fitted.draws(many, one_run=b), axis=0) for b in (False, True)]
        for place in range(len(many)):
            one = many.iloc[[place]]
            alone = fitted.predict(one)[ANSWER].to_numpy()
            assert alone[0] == pytest.approx(together[place], rel=1e-6)
            for draws, one_run in zip(drawn, (False, True), strict=True):
                own = np.sort(fitted.draws(one, one_run=one_run)[:, 0])
                assert own == pytest.approx(draws[:, place], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.0, id="plain"),
        pytest.param(0.3, id="contradicting", marks=pytest.mark.repetition),
    ],
)
def test_order_units_and_copies_of_rows_change_no_answer(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]], share: float
) -> None:
    for machine, rows, _ in swept[:3]:
        rng = np.random.default_rng(1)
        odd = rng.random(len(rows)) < share
        rows = rows.assign(step_time_s=rows["step_time_s"] * np.where(odd, 3.0, 1.0))
        asked = at([1, 4, 6, 64], 16, machine["gpus_per_node"])
        plain = StepTimeLaw.fit(rows).predict(asked)
        order = rng.permutation(len(rows))
        for changed, unit in (
            (rows.iloc[order], 1.0),
            (pd.concat([rows, rows.iloc[order[:20]]]), 1.0),
            (rows.assign(step_time_s=rows["step_time_s"] * 1e3), 1e3),
        ):
            answer = StepTimeLaw.fit(changed).predict(asked)
            for name in ANSWER:
                expected = plain[name].to_numpy() * unit
                assert answer[name].to_numpy() == pytest.approx(expected, rel=1e-3)
            assert answer["support"].equals(plain["support"])


@pytest.mark.parametrize(
    "column", ["num_nodes", "gradient_accumulation_steps", "workload", "precision"]
)
def test_a_missing_column_says_as_much_as_an_empty_one(
    swept: list[tuple[Any, pd.DataFrame, StepTimeLaw]], column: str
) -> None:
    _, rows, _ = swept[0]
    rows = rows[rows["num_nodes"] == 1]
    asked = pd.DataFrame({"world_size": [1, 2], "local_batch_size": [8, 24]})
    without = StepTimeLaw.fit(rows.drop(columns=column, errors="ignore"))
    empty = StepTimeLaw.fit(rows.assign(**{column: np.nan}))
    pd.testing.assert_frame_equal(without.predict(asked), empty.predict(asked))
