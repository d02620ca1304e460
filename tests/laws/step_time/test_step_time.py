from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from declared_machines import declared_step_time, random_machine, sweep_rows
from sentences import refused

from scalelab.errors import FitError, SpecError
from scalelab.inputs.outcome import Support
from scalelab.laws.step_time.law import StepTimeLaw
from scalelab.laws.step_time.prior import StepTimePrior

ANSWER = ["step_time_s", "step_time_lo_s", "step_time_hi_s"]


def configurations(
    sizes: list[int],
    batch: int | list[int] = 32,
    per_node: int = 4,
    **more: int | list[str | str | None] | str,
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "world_size": sizes,
            "num_nodes": [-(-n // per_node) for n in sizes],
            "local_batch_size": batch,
            **more,
        }
    )


@pytest.fixture(scope="module")
def law(rows: pd.DataFrame) -> StepTimeLaw:
    return StepTimeLaw.fit(rows)


def test_it_follows_the_measurements(
    law: StepTimeLaw, truth: Callable[..., Any]
) -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    answer = law.predict(configurations(sizes))
    assert (answer["support"] == Support.MEASURED).all()
    expected = [truth(n, 32) for n in sizes]
    assert answer["step_time_s"].to_numpy() == pytest.approx(expected, rel=0.03)


def test_it_extrapolates_world_sizes_and_says_so(
    law: StepTimeLaw, truth: Callable[..., Any]
) -> None:
    answer = law.predict(configurations([64, 128]))
    assert (answer["support"] == Support.EXTRAPOLATED).all()
    expected = [truth(n, 32) for n in (64, 128)]
    assert answer["step_time_s"].to_numpy() == pytest.approx(expected, rel=0.1)
    assert (answer["step_time_lo_s"] < expected).all()
    assert (answer["step_time_hi_s"] > expected).all()


def test_intervals_widen_with_distance(law: StepTimeLaw) -> None:
    answer = law.predict(configurations([32, 64, 128, 256]))
    widths = np.log(answer["step_time_hi_s"] / answer["step_time_lo_s"])
    assert (np.diff(widths) > 0).all()


def test_a_larger_mass_gives_a_wider_interval(law: StepTimeLaw) -> None:
    asked = configurations([12, 64])
    narrow, wide = law.predict(asked, 0.5), law.predict(asked, 0.95)
    assert (wide["step_time_lo_s"] < narrow["step_time_lo_s"]).all()
    assert (wide["step_time_hi_s"] > narrow["step_time_hi_s"]).all()


def test_time_rises_with_the_local_batch(law: StepTimeLaw) -> None:
    batches = [4, 8, 12, 16, 24, 32, 64]
    asked = pd.DataFrame({"world_size": 1, "local_batch_size": batches})
    assert (np.diff(law.predict(asked)["step_time_s"]) > 0).all()


def test_time_does_not_fall_with_devices_at_a_fixed_local_batch(
    law: StepTimeLaw,
) -> None:
    drawn = law.draws(configurations([1, 2, 4, 8, 16, 32, 64]))
    assert (np.diff(np.median(drawn, axis=0)) > -1e-3).all()


def test_throughput_stays_below_ideal_scaling(law: StepTimeLaw) -> None:
    answer = law.predict(configurations([1, 4, 16, 64]))
    per_device = answer["throughput_samples_per_s"] / answer["world_size"]
    assert (per_device <= per_device.iloc[0] * 1.02).all()


def test_accumulated_passes_cost_computation_but_one_exchange(
    law: StepTimeLaw, truth: Callable[..., Any]
) -> None:
    asked = configurations([8], gradient_accumulation_steps=4)
    answer = law.predict(asked)
    assert answer["step_time_s"].item() == pytest.approx(truth(8, 32, 4), rel=0.05)
    expected = 32 * 8 * 4 / answer["step_time_s"].item()
    assert answer["throughput_samples_per_s"].item() == pytest.approx(expected)


def test_a_change_of_units_changes_nothing_else(
    rows: pd.DataFrame, law: StepTimeLaw
) -> None:
    asked = configurations([3, 16, 64])
    scaled = rows.assign(step_time_s=rows["step_time_s"] * 1000)
    answer = StepTimeLaw.fit(scaled).predict(asked)
    for name in ANSWER:
        expected = law.predict(asked)[name].to_numpy() * 1000
        assert answer[name].to_numpy() == pytest.approx(expected, rel=1e-3)


def test_the_order_of_rows_does_not_matter(
    rows: pd.DataFrame, law: StepTimeLaw
) -> None:
    asked = configurations([3, 16, 64])
    shuffled = StepTimeLaw.fit(rows.sample(frac=1, random_state=3)).predict(asked)
    pd.testing.assert_frame_equal(shuffled, law.predict(asked))


def test_a_row_given_twice_counts_once(rows: pd.DataFrame, law: StepTimeLaw) -> None:
    asked = configurations([3, 16, 64])
    doubled = StepTimeLaw.fit(pd.concat([rows, rows])).predict(asked)
    pd.testing.assert_frame_equal(doubled, law.predict(asked))


def test_one_odd_measurement_is_outvoted(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    odd = rows.copy()
    odd.loc[odd.index[20], "step_time_s"] *= 5
    answer = StepTimeLaw.fit(odd).predict(configurations([2, 16, 64]))
    expected = [truth(n, 32) for n in (2, 16, 64)]
    assert answer["step_time_s"].to_numpy() == pytest.approx(expected, rel=0.1)


def test_runs_that_contradict_each_other_make_the_answer_as_wide_as_they_are() -> None:
    """20 and 4 samples/s for one configuration."""
    two = pd.DataFrame(
        {"world_size": 1, "local_batch_size": 8, "step_time_s": [0.4, 2]}
    )
    answer = StepTimeLaw.fit(two).predict(configurations([1], 8))
    assert answer["step_time_lo_s"].item() < 0.4
    assert answer["step_time_hi_s"].item() > 2
    assert answer["num_repeats"].item() == 2


def test_one_contradicted_configuration_widens_itself_and_no_other(
    rows: pd.DataFrame,
) -> None:
    odd = rows.copy()
    place = odd.index[(odd["world_size"] == 8) & (odd["local_batch_size"] == 16)]
    odd.loc[place[0], "step_time_s"] *= 4
    odd.loc[place[1], "step_time_s"] /= 4
    asked = configurations([1, 8, 16], 16)
    before, after = (width(StepTimeLaw.fit(r).predict(asked)) for r in (rows, odd))
    assert after[1] > 10 * before[1]
    assert (after[[0, 2]] < 3 * before[[0, 2]]).all()


def test_the_number_of_runs_is_told(law: StepTimeLaw) -> None:
    answer = law.predict(configurations([1, 3, 64]))
    assert answer["num_repeats"].tolist() == [3, 0, 0]


def test_throughput_stands_in_for_a_missing_step_time(
    rows: pd.DataFrame, law: StepTimeLaw
) -> None:
    total = rows["local_batch_size"] * rows["world_size"]
    table = rows.assign(throughput_samples_per_s=total / rows["step_time_s"])
    asked = configurations([16])
    answer = StepTimeLaw.fit(table.drop(columns="step_time_s")).predict(asked)
    expected = law.predict(asked)["step_time_s"].item()
    assert answer["step_time_s"].item() == pytest.approx(expected, rel=1e-6)


def test_the_index_of_the_configurations_is_kept(law: StepTimeLaw) -> None:
    asked = configurations([16, 1, 64]).set_axis([7, 7, "x"])
    answer = law.predict(asked)
    assert list(answer.index) == [7, 7, "x"]
    expected = law.predict(configurations([16, 1, 64]))["step_time_s"].to_numpy()
    assert answer["step_time_s"].to_numpy() == pytest.approx(expected)


def test_no_configurations_give_no_answers(law: StepTimeLaw) -> None:
    answer = law.predict(configurations([]))
    assert answer.empty
    assert set(ANSWER) <= set(answer.columns)


def test_a_missing_column_is_named(law: StepTimeLaw) -> None:
    with refused("columns_missing", "world_size", "local_batch_size"):
        law.predict(pd.DataFrame({"gpus": [1]}))


def test_an_interval_outside_0_and_1_is_refused(law: StepTimeLaw) -> None:
    with refused("not_a_share", "interval=80"):
        law.predict(configurations([1]), interval=80)


def test_no_usable_row_is_an_error_that_counts_reasons(rows: pd.DataFrame) -> None:
    marked = rows.assign(validity=[["shared_node"]] * len(rows))
    with pytest.raises(FitError, match=r"None of the 54 rows .* \(54 shared_node\)"):
        StepTimeLaw.fit(marked)
    with pytest.raises(FitError, match="None of the 0 rows has a usable step time"):
        StepTimeLaw.fit(rows.iloc[:0])


def test_marked_rows_are_left_out_and_counted(
    rows: pd.DataFrame, law: StepTimeLaw
) -> None:
    spoilt = rows.assign(
        step_time_s=rows["step_time_s"] * 9, validity=[["loopback_nodes"]] * len(rows)
    )
    both = StepTimeLaw.fit(pd.concat([rows.assign(validity=None), spoilt]))
    assert both.left_out == ((("loopback_nodes",), len(rows)),)
    asked = configurations([16])
    expected = law.predict(asked)["step_time_s"].item()
    assert both.predict(asked)["step_time_s"].item() == pytest.approx(expected)


def test_curves_are_fitted_apart_and_asked_for_by_name(rows: pd.DataFrame) -> None:
    slow = rows.assign(precision="fp32", step_time_s=rows["step_time_s"] * 3)
    law = StepTimeLaw.fit(pd.concat([rows.assign(precision="bf16"), slow]))
    answer = law.predict(configurations([16, 16], precision=["fp32", "bf16"]))
    ratio = answer["step_time_s"].iloc[0] / answer["step_time_s"].iloc[1]
    assert ratio == pytest.approx(3, rel=0.02)
    assert set(law.parameters()["curve"]) == {"precision=bf16", "precision=fp32"}
    with refused("not_one_curve", "2 of 2", "precision=bf16"):
        law.predict(configurations([16]))
    with pytest.raises(SpecError, match="matches 0 of 2 fitted curves"):
        law.predict(configurations([16], precision="fp16"))


def test_rows_without_a_value_of_a_column_are_a_curve_of_their_own(
    rows: pd.DataFrame,
) -> None:
    slow = rows.assign(precision=None, step_time_s=rows["step_time_s"] * 3)
    law = StepTimeLaw.fit(pd.concat([rows.assign(precision="bf16"), slow]))
    answer = law.predict(configurations([16, 16], precision=[None, "bf16"]))
    ratio = answer["step_time_s"].iloc[0] / answer["step_time_s"].iloc[1]
    assert ratio == pytest.approx(3, rel=0.02)


def exposed_s(machine: dict[str, float], size: int, batch: int = 8) -> float:
    """What the exchange adds to a step on some devices, full nodes of them."""
    alone = {**machine, "intra_latency": 0.0, "intra_transfer": 0.0}
    alone |= {"inter_latency": 0.0, "inter_transfer": 0.0}
    with_it, without = (
        declared_step_time(each, size, batch) for each in (machine, alone)
    )
    return with_it - without


def declared_parameters(machine: dict[str, float]) -> dict[str, float]:
    """What the table of parameters should say of a declared machine."""
    per_node = int(machine["gpus_per_node"])
    one, two = (exposed_s(machine, nodes * per_node) for nodes in (1, 2))
    return {
        "compute_fixed": machine["fixed"],
        "compute_per_sample": machine["per_sample"],
        "intra_node_exchange": one,
        "inter_node_exchange": two - one,
    }


def test_the_parameters_of_a_clean_sweep_are_recovered(
    machine: dict[str, float], law: StepTimeLaw
) -> None:
    table = law.parameters(0.95).set_index("name")
    for name, truth in declared_parameters(machine).items():
        row = table.loc[name]
        assert row["lo"] <= truth <= row["hi"], name
        assert row["value"] == pytest.approx(truth, rel=0.5), name
    assert table.loc["compute_per_sample", "identified"]
    assert set(table["unit"]) == {"s", "1"}


@pytest.mark.slow
def test_random_machines_are_recovered_inside_their_intervals() -> None:
    inside: dict[str, list[bool]] = {"terms": [], "measured": [], "extrapolated": []}
    for seed in range(16):
        rng = np.random.default_rng(100 + seed)
        machine, noise = random_machine(rng), rng.uniform(0.003, 0.02)
        law = StepTimeLaw.fit(sweep_rows(machine, rng, noise=noise))
        table = law.parameters(0.9).set_index("name")
        for name, truth in declared_parameters(machine).items():
            row = table.loc[name]
            inside["terms"].append(row["lo"] <= truth <= row["hi"])
        per_node = machine["gpus_per_node"]
        asked = configurations([1, 4, 16, 64, 128], 16, per_node)
        for _, row in law.predict(asked).iterrows():
            declared = declared_step_time(machine, row["world_size"], 16)
            holds = row["step_time_lo_s"] <= declared <= row["step_time_hi_s"]
            inside[row["support"]].append(holds)
    shares = {name: np.mean(values) for name, values in inside.items()}
    assert shares["terms"] > 0.8
    assert shares["measured"] > 0.8
    assert shares["extrapolated"] > 0.8


def width(answer: pd.DataFrame) -> np.ndarray:
    return np.log(answer["step_time_hi_s"] / answer["step_time_lo_s"]).to_numpy()


def test_a_second_device_that_nobody_measured_is_answered_as_such(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    law = StepTimeLaw.fit(rows[rows["world_size"] == 1])
    asked = configurations([1, 2])
    answer = law.predict(asked)
    assert list(answer["support"]) == [Support.MEASURED, Support.NOT_MEASURED]
    assert width(answer)[1] > 3 * width(answer)[0]
    assert answer["step_time_lo_s"].iloc[1] < truth(2, 32)
    assert answer["step_time_hi_s"].iloc[1] > truth(2, 32)
    (gap,) = law.gaps_at(asked)
    assert gap.why == "within a node no more than one device was measured"
    assert gap.remedy == "Measure 1 node x 2."


def test_one_size_on_several_nodes_predicts_others_with_a_wide_interval(
    rows: pd.DataFrame,
) -> None:
    """1, 4 and 8 devices on nodes of four were measured, and 16 is asked."""
    few = rows[rows["world_size"].isin([1, 4, 8])]
    law = StepTimeLaw.fit(few)
    answer = law.predict(configurations([8, 16, 32]))
    assert list(answer["support"]) == [Support.MEASURED, *[Support.EXTRAPOLATED] * 2]
    assert (np.diff(width(answer)) > 0).all()
    assert law.gaps_at(configurations([16, 32])) == ()


def test_a_single_batch_predicts_another_with_a_wide_interval(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    law = StepTimeLaw.fit(rows[rows["local_batch_size"] == 16])
    answer = law.predict(configurations([8, 8], batch=[16, 64]))
    assert list(answer["support"]) == [Support.MEASURED, Support.EXTRAPOLATED]
    assert width(answer)[1] > 3 * width(answer)[0]
    assert answer["step_time_lo_s"].iloc[1] < truth(8, 64)
    table = law.identifiable.set_index("parameter")
    assert table.loc["compute_fixed", "remedy"] == (
        "Measure local batch 8 on 1 device."
    )


def test_one_row_is_enough_for_that_configuration(rows: pd.DataFrame) -> None:
    law = StepTimeLaw.fit(rows.iloc[[0]])
    answer = law.predict(rows.iloc[[0]].drop(columns="step_time_s"))
    expected = rows["step_time_s"].iloc[0]
    assert answer["step_time_s"].item() == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_a_prior_from_other_curves_answers_what_the_rows_cannot(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    others = [
        rows.assign(workload=name, step_time_s=rows["step_time_s"] * factor)
        for name, factor in (("a", 0.5), ("b", 1.0), ("c", 2.0))
    ]
    prior = StepTimePrior.learn(pd.concat(others))
    assert "inter_node_transfer" in prior.determined_for(())
    law = StepTimeLaw.fit(rows[rows["world_size"] <= 4], prior=prior)
    answer = law.predict(configurations([8]))
    assert answer["support"].item() == Support.EXTRAPOLATED
    lo, hi = answer["step_time_lo_s"].item(), answer["step_time_hi_s"].item()
    assert lo < truth(8, 32) < hi
    assert hi / lo < 3


def test_draws_of_one_run_spread_more_than_the_expectation(law: StepTimeLaw) -> None:
    asked = configurations([16])
    expected, one_run = law.draws(asked), law.draws(asked, one_run=True)
    assert np.log(one_run).std() > np.log(expected).std()
    assert expected.shape == (400, 1)


def test_terms_are_those_of_one_curve(law: StepTimeLaw, rows: pd.DataFrame) -> None:
    with refused("not_one_curve"):
        law.terms(configurations([16]).iloc[:0])
    both = pd.concat([rows.assign(workload="a"), rows.assign(workload="b")])
    asked = pd.concat([configurations([4]).assign(workload=name) for name in "ab"])
    with refused("not_one_curve"):
        StepTimeLaw.fit(both).terms(asked)


def test_a_second_node_that_nobody_measured_is_answered_as_such(
    rows: pd.DataFrame, truth: Callable[..., Any]
) -> None:
    law = StepTimeLaw.fit(rows[rows["num_nodes"] == 1])
    asked = configurations([4, 16])
    answer = law.predict(asked)
    assert list(answer["support"]) == [Support.MEASURED, Support.NOT_MEASURED]
    assert width(answer)[1] > 3 * width(answer)[0]
    assert answer["step_time_lo_s"].iloc[1] < truth(16, 32)
    assert np.isfinite(law.draws(asked)).all()
    assert [gap.remedy for gap in law.gaps_at(asked)] == ["Measure 2 nodes x 4."]


def test_predictions_and_draws_agree(law: StepTimeLaw) -> None:
    asked = configurations([2, 16, 64])
    drawn = np.quantile(law.draws(asked, one_run=True), [0.1, 0.5, 0.9], axis=0)
    answer = law.predict(asked)
    for name, expected in zip(
        ("step_time_lo_s", "step_time_s", "step_time_hi_s"), drawn, strict=True
    ):
        assert answer[name].to_numpy() == pytest.approx(expected, rel=0.05)
