from typing import Any

import numpy as np
import pandas as pd
import pytest
from sentences import refused
from stopped_runs import stopped
from toy_strategies import STALE, register

from scalelab.errors import FitError, NotIdentifiableError
from scalelab.inputs.outcome import Support
from scalelab.laws.convergence.law import ConvergenceLaw
from scalelab.laws.convergence.rows import is_learnt_so, target_rows

S_MIN, B_CRIT = 20_000, 512


def trials(
    rng: np.random.Generator,
    batches: tuple[Any, ...] = (64, 128, 256, 512, 1024),
    seeds: int = 4,
    spread: float = 0.05,
    **columns: float | str,
) -> pd.DataFrame:
    rows = []
    for batch in batches:
        for _ in range(seeds):
            samples = S_MIN * (1 + batch / B_CRIT)
            samples *= np.exp(spread * rng.standard_normal())
            rows.append(
                {"global_batch_size": batch, "samples_to_target": round(samples)}
            )
    names = ["global_batch_size", "samples_to_target"]
    return pd.DataFrame(rows, columns=names).assign(
        kind="convergence",
        outcome="completed",
        reached_target=True,
        lr_rule="sqrt",
        target_metric="val_acc",
        metric_mode="max",
        target_value=0.9,
        **columns,
    )


def asked(
    *batches: int | np.float64, **columns: int | list[int | str] | str
) -> pd.DataFrame:
    return pd.DataFrame({"global_batch_size": batches, **columns})


@pytest.mark.slow
def test_the_constants_are_recovered_at_the_rate_of_their_intervals() -> None:
    declared = {
        "min_samples": S_MIN,
        "critical_batch_size": B_CRIT,
        "run_to_run_spread": 0.05,
    }
    inside = []
    for seed in range(12):
        law = ConvergenceLaw.fit(trials(np.random.default_rng(seed)))
        table = law.parameters(0.9).set_index("name")
        inside += [
            table.loc[name, "lo"] <= value <= table.loc[name, "hi"]
            for name, value in declared.items()
        ]
        assert table.drop("failing_batch_size")["identified"].all()
    assert np.mean(inside) > 0.75


@pytest.mark.slow
def test_intervals_cover_at_their_rate() -> None:
    inside = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        law = ConvergenceLaw.fit(trials(rng))
        new = trials(np.random.default_rng(900 + seed), seeds=1)
        answer = law.predict(asked(*new["global_batch_size"]))
        fresh = new["samples_to_target"].to_numpy()
        inside += list(
            (answer["samples_lo"] <= fresh) & (fresh <= answer["samples_hi"])
        )
    assert 0.65 < np.mean(inside) < 0.95


def test_samples_rise_with_the_batch_and_uncertainty_with_distance(
    rng: np.random.Generator,
) -> None:
    answer = ConvergenceLaw.fit(trials(rng)).predict(asked(32, 64, 300, 1024, 8192))
    assert (np.diff(answer["samples_to_target"]) > 0).all()
    kinds = ["extrapolated", "measured", "interpolated", "measured", "extrapolated"]
    assert answer["support"].tolist() == kinds
    width = np.log(answer["samples_hi"] / answer["samples_lo"])
    assert width.iloc[4] > width.iloc[2]


def test_trials_that_stopped_early_are_censored_not_dropped(
    rng: np.random.Generator,
) -> None:
    full = trials(rng, seeds=6)
    cut = stopped(full, 50_000)
    assert (~cut["reached_target"]).sum() >= 5
    law = ConvergenceLaw.fit(cut)
    expected = S_MIN * (1 + 1024 / B_CRIT)
    answer = law.predict(asked(1024))
    assert answer["samples_to_target"].item() > 50_000
    assert answer["samples_lo"].item() < expected < answer["samples_hi"].item() * 1.5
    dropped = ConvergenceLaw.fit(cut[cut["reached_target"]])
    naive = dropped.predict(asked(1024))["samples_hi"].item()
    assert answer["samples_hi"].item() > naive * 0.8


def test_pruned_trials_are_censored_like_those_that_ran_to_their_limit(
    rng: np.random.Generator,
) -> None:
    cut = stopped(trials(rng), 50_000)
    pruned = cut.assign(outcome=cut["outcome"].replace("target_not_reached", "pruned"))
    question = asked(64, 1024)
    pd.testing.assert_frame_equal(
        ConvergenceLaw.fit(pruned).predict(question),
        ConvergenceLaw.fit(cut).predict(question),
    )
    throughput = pruned.assign(outcome="pruned", target_metric=None, num_samples=9)
    throughput = throughput.drop(columns=["samples_to_target", "reached_target"])
    both = pd.concat([pruned, throughput], ignore_index=True)
    assert len(target_rows(both).frame) == len(pruned)


def test_probability_of_reaching_falls_with_the_batch_and_rises_with_the_budget(
    rng: np.random.Generator,
) -> None:
    law = ConvergenceLaw.fit(trials(rng))
    small = law.predict(asked(64, 512, 4096, budget_samples=45_000))
    chances = small["probability_of_reaching"]
    assert (np.diff(chances) <= 0).all()
    assert chances.iloc[0] > 0.9
    assert chances.iloc[2] < 0.1
    large = law.predict(asked(512, budget_samples=80_000))
    assert large["probability_of_reaching"].item() > chances.iloc[1]
    without = law.predict(asked(64, 4096))["probability_of_reaching"]
    assert (without.to_numpy() >= chances.iloc[[0, 2]].to_numpy()).all()


def test_the_noise_scale_says_something_where_one_batch_was_measured(
    rng: np.random.Generator,
) -> None:
    plain = ConvergenceLaw.fit(trials(rng, batches=(64,)))
    told = ConvergenceLaw.fit(trials(rng, batches=(64,), gradient_noise_scale=500.0))
    wide, narrow = (
        law.parameters().set_index("name").loc["critical_batch_size"]
        for law in (plain, told)
    )
    assert narrow["lo"] < 500 < narrow["hi"]
    assert narrow["hi"] / narrow["lo"] < wide["hi"] / wide["lo"]


def test_one_batch_answers_only_itself(rng: np.random.Generator) -> None:
    law = ConvergenceLaw.fit(trials(rng, batches=(64,)))
    answer = law.predict(asked(64, 128))
    assert answer["support"].tolist() == [Support.MEASURED, Support.NOT_MEASURED]
    assert np.isnan(answer["samples_to_target"].iloc[1])
    table = law.identifiable.set_index("parameter")
    assert table.loc["critical_batch_size", "remedy"] == "Measure another global batch."
    with pytest.raises(
        NotIdentifiableError,
        match=r"Only the global batch 64 was measured\. Run a convergence trial at "
        r"global batch 128\.",
    ):
        law.predict(asked(128, 256))


@pytest.mark.parametrize("columns", [{}, {"workload": []}])
def test_no_question_has_no_answer(
    rng: np.random.Generator, columns: dict[str, Any]
) -> None:
    answer = ConvergenceLaw.fit(trials(rng)).predict(asked().assign(**columns))
    assert answer.empty
    assert "samples_to_target" in answer.columns


def test_a_target_nobody_reached_supports_nothing(rng: np.random.Generator) -> None:
    runs = stopped(trials(rng), 1000)
    law = ConvergenceLaw.fit(runs)
    with pytest.raises(
        NotIdentifiableError,
        match=rf"^the number of samples to the target is not identifiable\. All "
        rf"{len(runs)} runs stopped before the target\. Train longer, first at global "
        r"batch 64",
    ):
        law.predict(asked(64, 128))


def test_rules_are_fitted_apart(rng: np.random.Generator) -> None:
    worse = trials(rng).assign(
        lr_rule="none", samples_to_target=lambda d: d["samples_to_target"] * 2
    )
    law = ConvergenceLaw.fit(pd.concat([trials(rng), worse]))
    answer = law.predict(asked(256, 256, lr_rule=["none", "sqrt"]))
    ratio = answer["samples_to_target"].iloc[0] / answer["samples_to_target"].iloc[1]
    assert ratio == pytest.approx(2, rel=0.1)
    with refused("not_one_curve", "2 of 2", "lr_rule"):
        law.predict(asked(256))


def test_runs_without_a_rule_are_a_curve_of_their_own(rng: np.random.Generator) -> None:
    worse = trials(rng).assign(
        lr_rule=None, samples_to_target=lambda d: d["samples_to_target"] * 2
    )
    law = ConvergenceLaw.fit(pd.concat([trials(rng), worse]))
    assert [law.curve_of(key) for key in law.curves] == list(law.curves)
    bare, ruled = (law.draws(key, np.array([256.0])) for key in law.curves)
    ratio = np.median(bare) / np.median(ruled)
    assert max(ratio, 1 / ratio) == pytest.approx(2, rel=0.1)
    assert law.predict(asked(256, lr_rule="sqrt"))["samples_to_target"].notna().all()


def rated(base: float, warmup: str | None, rng: np.random.Generator) -> pd.DataFrame:
    rows = trials(rng=rng)
    return rows.assign(base_learning_rate=base, warmup=warmup, lr_rule="none")


def test_base_rates_and_warm_ups_of_one_batch_are_fitted_apart(
    rng: np.random.Generator,
) -> None:
    several = [rated(base, w, rng) for base in (0.1, 0.4) for w in (None, "9 steps")]
    law = ConvergenceLaw.fit(pd.concat(several, ignore_index=True))
    found = {(dict(k)["base_learning_rate"], dict(k).get("warmup")) for k in law.curves}
    assert found == {(0.1, None), (0.1, "9 steps"), (0.4, None), (0.4, "9 steps")}


def test_a_rate_that_each_batch_has_of_its_own_tells_no_curves_apart(
    rng: np.random.Generator,
) -> None:
    rows = rated(0.1, None, rng)
    rows["base_learning_rate"] = rows["global_batch_size"] / 1000
    assert len(ConvergenceLaw.fit(rows).curves) == 1


def test_only_marks_that_spoil_convergence_leave_rows_out(
    rng: np.random.Generator,
) -> None:
    frame = trials(rng)
    marks = [["shared_node"], ["code_changed"]] * (len(frame) // 2)
    law = ConvergenceLaw.fit(frame.assign(validity=marks))
    assert law.left_out == ((("validity",), len(frame) // 2),)


def test_rows_with_a_sharded_order_are_left_out_and_counted(
    rng: np.random.Generator,
) -> None:
    plain, sharded = trials(rng), trials(rng).assign(sample_order="sharded")
    sharded["samples_to_target"] *= 3
    law = ConvergenceLaw.fit(pd.concat([plain, sharded], ignore_index=True))
    assert law.left_out == ((("sharded order",), len(sharded)),)
    batches = asked(128, 700)
    expected = ConvergenceLaw.fit(plain).predict(batches)
    pd.testing.assert_frame_equal(law.predict(batches), expected)
    with pytest.raises(
        FitError,
        match=r"^No row can be fitted \(20 sharded order\)\. Run trials of kind "
        r"convergence, with an order that is not sharded\.$",
    ):
        ConvergenceLaw.fit(sharded)


def test_rows_without_a_target_are_no_convergence() -> None:
    frame = pd.DataFrame({"world_size": [1], "step_time_s": [0.1]})
    with pytest.raises(FitError, match="Run trials of kind convergence"):
        ConvergenceLaw.fit(frame)


def test_the_order_of_rows_does_not_matter(rng: np.random.Generator) -> None:
    frame = trials(rng)
    first = ConvergenceLaw.fit(frame).predict(asked(300))
    second = ConvergenceLaw.fit(frame.iloc[::-1]).predict(asked(300))
    pd.testing.assert_frame_equal(first, second)


def test_batches_that_never_get_there_are_a_finding(rng: np.random.Generator) -> None:
    frame = trials(rng, batches=(64, 128, 256, 512, 1024, 2048))
    hopeless = frame["global_batch_size"] >= 1024
    budget = frame["samples_to_target"].where(~hopeless)
    late = frame.assign(
        samples_to_target=budget,
        num_samples=budget.fillna(2_000_000),
        reached_target=~hopeless,
    )
    law = ConvergenceLaw.fit(late)
    chances = law.predict(asked(128, 512, 2048))["probability_of_reaching"]
    assert (np.diff(chances) < 0).all()
    assert chances.iloc[0] > 0.9
    assert chances.iloc[2] < 0.2
    table = law.parameters().set_index("name").loc["failing_batch_size"]
    assert table["identified"]
    assert 400 < table["value"] < 2000
    reached = law.reaches(next(iter(law.curves)), np.array([128.0, 2048.0]))
    assert reached[:, 0].mean() > reached[:, 1].mean()


def test_a_budget_is_a_bound_not_a_value(rng: np.random.Generator) -> None:
    frame = trials(rng, seeds=6)
    small, large = (
        ConvergenceLaw.fit(
            stopped(frame, 55_000).assign(
                num_samples=lambda d, factor=factor: d["num_samples"].where(
                    d["reached_target"], d["num_samples"] * factor
                )
            )
        )
        for factor in (1.0, 1.3)
    )
    assert (
        large.predict(asked(1024))["samples_to_target"].item()
        > small.predict(asked(1024))["samples_to_target"].item()
    )


def test_the_law_is_monotone_and_flat_below_the_critical_batch(
    rng: np.random.Generator,
) -> None:
    law = ConvergenceLaw.fit(trials(rng))
    batches = np.geomspace(1, 1e6, 40) * 1.0001
    answer = law.predict(asked(*batches))
    assert (np.diff(answer["samples_to_target"]) > 0).all()
    assert answer["samples_to_target"].iloc[0] == pytest.approx(S_MIN, rel=0.15)
    chances = answer["probability_of_reaching"]
    assert (np.diff(chances) <= 0).all()
    assert chances.iloc[0] == pytest.approx(1, abs=1e-3)


def test_a_change_of_units_changes_no_answer(rng: np.random.Generator) -> None:
    frame = trials(rng)
    tokens = frame.assign(
        global_batch_size=frame["global_batch_size"] * 1000,
        samples_to_target=frame["samples_to_target"] * 1000,
    )
    plain = ConvergenceLaw.fit(frame).predict(asked(300, 4096))
    scaled = ConvergenceLaw.fit(tokens).predict(asked(300_000, 4_096_000))
    for name in ("samples_to_target", "samples_lo", "samples_hi"):
        assert scaled[name].to_numpy() == pytest.approx(
            1000 * plain[name].to_numpy(), rel=1e-6
        )
    assert scaled["support"].equals(plain["support"])


def test_a_row_given_twice_counts_once(rng: np.random.Generator) -> None:
    frame = trials(rng)
    frame["trial_id"] = [f"t{n}" for n in range(len(frame))]
    twice = ConvergenceLaw.fit(pd.concat([frame, frame])).predict(asked(300))
    once = ConvergenceLaw.fit(frame).predict(asked(300))
    pd.testing.assert_frame_equal(once, twice)


def test_equal_counts_of_two_seeds_are_two_runs(rng: np.random.Generator) -> None:
    frame = trials(rng, batches=(64, 256), seeds=1)
    both = pd.concat([frame.assign(seed=0), frame.assign(seed=1)])
    (curve,) = ConvergenceLaw.fit(both).curves.values()
    assert curve.num_reached == 4


def test_one_odd_batch_moves_the_others_little(rng: np.random.Generator) -> None:
    frame = trials(rng, spread=0.02)
    odd = frame.assign(
        samples_to_target=frame["samples_to_target"].where(
            frame["global_batch_size"] != 256, frame["samples_to_target"] * 1.6
        )
    )
    plain = ConvergenceLaw.fit(frame).predict(asked(512, 2048))["samples_to_target"]
    moved = ConvergenceLaw.fit(odd).predict(asked(512, 2048))["samples_to_target"]
    assert moved.to_numpy() == pytest.approx(plain.to_numpy(), rel=0.15)


def test_a_measured_batch_is_answered_by_its_own_runs(rng: np.random.Generator) -> None:
    frame = trials(rng, seeds=8, spread=0.02)
    easy = frame["global_batch_size"] == 256
    frame["samples_to_target"] = frame["samples_to_target"].where(
        ~easy, frame["samples_to_target"] * 0.85
    )
    answer = ConvergenceLaw.fit(frame).predict(asked(256, 257))
    own = frame[easy]["samples_to_target"].median()
    measured, beside = answer["samples_to_target"]
    assert measured == pytest.approx(own, rel=0.04)
    assert beside > measured


def test_the_normalisation_batch_matters_where_batch_norm_is_used(
    rng: np.random.Generator,
) -> None:
    frames = []
    for norm in (4, 64):
        rows = trials(rng, batches=(64, 256, 1024))
        growth = (norm / 16) ** 0.13
        frames.append(
            rows.assign(
                samples_to_target=rows["samples_to_target"] * growth,
                normalization_batch_size=norm,
            )
        )
    law = ConvergenceLaw.fit(pd.concat(frames))
    table = law.parameters(0.98).set_index("name").loc["normalization_effect"]
    assert table["lo"] < 0.13 < table["hi"]
    answer = law.predict(asked(512, 512, normalization_batch_size=[4, 64]))
    few, many = answer["samples_to_target"]
    assert many / few == pytest.approx(16**0.13, rel=0.1)
    between = law.predict(asked(512))["samples_to_target"].item()
    assert few < between < many


def test_missing_columns_are_missing_knowledge(rng: np.random.Generator) -> None:
    frame = trials(rng)[["global_batch_size", "samples_to_target"]]
    assert ConvergenceLaw.fit(frame).predict(asked(300))["samples_hi"].notna().all()


def test_stale_workers_have_curves_of_their_own(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, STALE)
    frame = pd.concat(
        [
            trials(rng, parallelism="stale", data_parallel_size=2),
            trials(rng, parallelism="stale", data_parallel_size=8),
        ]
    )
    frame["samples_to_target"] *= np.where(frame["data_parallel_size"] == 8, 1.5, 1)
    law = ConvergenceLaw.fit(frame)
    answer = law.predict(
        asked(256, 256, parallelism="stale", data_parallel_size=[2, 8])
    )
    two, eight = answer["samples_to_target"]
    assert eight / two == pytest.approx(1.5, rel=0.1)
    assert len(ConvergenceLaw.fit(frame.assign(parallelism="ddp")).curves) == 1


def test_options_of_ranks_that_step_alone_tell_their_curves_apart(
    rng: np.random.Generator,
) -> None:
    period = "options.averaging_period"
    local = {"parallelism": "local_sgd", "data_parallel_size": 2}
    often = trials(rng, **local, **{period: 4})
    rarely = trials(rng, **local, **{period: 64})
    rarely["samples_to_target"] *= 1.5
    ddp = trials(rng, parallelism="ddp", data_parallel_size=2)
    law = ConvergenceLaw.fit(pd.concat([often, rarely, ddp]))
    configurations = pd.concat(
        [
            asked(256, 256, 256, **local, **{period: [4, 64, 16]}),
            asked(256, parallelism="local_sgd", data_parallel_size=4, **{period: 4}),
            asked(256, parallelism="ddp", data_parallel_size=4),
        ],
        ignore_index=True,
    )
    learnt = {
        (dict(key)["parallelism"], dict(key).get(period)): is_learnt_so(
            key, configurations
        ).tolist()
        for key in law.curves
    }
    assert learnt == {
        ("local_sgd", 4): [True, False, False, False, False],
        ("local_sgd", 64): [False, True, False, False, False],
        ("ddp", None): [False, False, False, False, True],
    }
    first, second = law.predict(configurations.iloc[:2])["samples_to_target"]
    assert second / first == pytest.approx(1.5, rel=0.1)


def test_compressed_gradients_converge_in_a_way_of_their_own(
    rng: np.random.Generator,
) -> None:
    name, rank = "options.gradient_compression", "options.powersgd_rank"
    whole = trials(rng, **{name: "none"})
    rounded = trials(rng, **{name: "bf16"})
    products = trials(rng, **{name: "powersgd"})
    finer = trials(rng, **{name: "powersgd", rank: 2})
    products["samples_to_target"] *= 2
    finer["samples_to_target"] *= 1.5
    law = ConvergenceLaw.fit(pd.concat([whole, rounded, products, finer]))
    configurations = asked(
        *(256, 256, 256, 256, 256),
        **{
            name: ["none", "bf16", "powersgd", "powersgd", "powersgd"],
            rank: [None, None, None, 1, 2],
        },
    )
    learnt = [is_learnt_so(key, configurations).tolist() for key in law.curves]
    assert sorted(learnt, reverse=True) == [
        [True, True, False, False, False],
        [False, False, True, True, False],
        [False, False, False, False, True],
    ]
    needed = law.predict(configurations)["samples_to_target"].to_numpy()
    assert needed / needed[0] == pytest.approx([1, 1, 2, 2, 1.5], rel=0.1)


def test_an_interval_has_a_mass_below_one(rng: np.random.Generator) -> None:
    with refused("not_a_share", "interval=1"):
        ConvergenceLaw.fit(trials(rng)).predict(asked(64), interval=1)


def chances(rows: pd.DataFrame, *batches: int) -> list[float]:
    answer = ConvergenceLaw.fit(rows).predict(asked(*batches))
    return answer["probability_of_reaching"].tolist()


def test_runs_that_missed_are_not_called_bad_luck(rng: np.random.Generator) -> None:
    rows = trials(rng, seeds=3)
    assert min(chances(rows, 512, 1024, 2048)) > 0.9
    late = rows.index[-2:]
    rows.loc[late, ["samples_to_target", "reached_target"]] = np.nan, False
    rows.loc[late, "outcome"] = "target_not_reached"
    missed = rows.assign(num_samples=rows["samples_to_target"].fillna(500_000))
    # one of three came, the rest had eight times as long as it takes
    below, at, beyond = chances(missed, 512, 1024, 2048)
    assert below > 0.8
    assert at < 0.55
    assert beyond <= at
    # had they been stopped early, they would say nothing
    short = rows.assign(num_samples=rows["samples_to_target"].fillna(5_000))
    assert min(chances(short, 512, 1024, 2048)) > 0.9
