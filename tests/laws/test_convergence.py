import numpy as np
import pandas as pd
import pytest

from scalelab.errors import FitError, SpecError
from scalelab.laws.convergence import ConvergenceLaw
from scalelab.laws.support import Support

S_MIN, B_CRIT = 20_000, 512


def trials(rng, batches=(64, 128, 256, 512, 1024), seeds=4, spread=0.05, **columns):
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


def censored(frame, budget):
    """Stop every trial at a budget of samples."""
    late = frame["samples_to_target"] > budget
    return frame.assign(
        samples_to_target=frame["samples_to_target"].where(~late),
        num_samples=frame["samples_to_target"].clip(upper=budget),
        reached_target=~late,
        outcome=np.where(late, "target_not_reached", "completed"),
    )


def asked(*batches, **columns):
    return pd.DataFrame({"global_batch_size": batches, **columns})


def test_the_constants_are_recovered_at_the_rate_of_their_intervals():
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
        assert table["identified"].all()
    assert np.mean(inside) > 0.75


def test_the_critical_batch_size_is_a_table_of_its_own(rng):
    critical = ConvergenceLaw.fit(trials(rng)).critical_batch_size
    assert list(critical.columns[:4]) == ["curve", "value", "lo", "hi"]
    assert critical["lo"].item() < critical["value"].item() < critical["hi"].item()


def test_intervals_cover_at_their_rate():
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


def test_samples_rise_with_the_batch_and_uncertainty_with_distance(rng):
    answer = ConvergenceLaw.fit(trials(rng)).predict(asked(32, 64, 300, 1024, 8192))
    assert (np.diff(answer["samples_to_target"]) > 0).all()
    kinds = ["extrapolated", "measured", "interpolated", "measured", "extrapolated"]
    assert answer["support"].tolist() == kinds
    width = np.log(answer["samples_hi"] / answer["samples_lo"])
    assert width.iloc[4] > width.iloc[2]


def test_trials_that_stopped_early_are_censored_not_dropped(rng):
    full = trials(rng, seeds=6)
    stopped = censored(full, 50_000)
    assert (~stopped["reached_target"]).sum() >= 5
    law = ConvergenceLaw.fit(stopped)
    expected = S_MIN * (1 + 1024 / B_CRIT)
    answer = law.predict(asked(1024))
    assert answer["samples_to_target"].item() > 50_000
    assert answer["samples_lo"].item() < expected < answer["samples_hi"].item() * 1.5
    dropped = ConvergenceLaw.fit(stopped[stopped["reached_target"]])
    naive = dropped.predict(asked(1024))["samples_hi"].item()
    assert answer["samples_hi"].item() > naive * 0.8


def test_probability_of_reaching_falls_with_the_batch_and_rises_with_the_budget(rng):
    law = ConvergenceLaw.fit(trials(rng))
    small = law.predict(asked(64, 512, 4096, budget_samples=45_000))
    chances = small["probability_of_reaching"]
    assert (np.diff(chances) <= 0).all()
    assert chances.iloc[0] > 0.9
    assert chances.iloc[2] < 0.1
    large = law.predict(asked(512, budget_samples=80_000))
    assert large["probability_of_reaching"].item() > chances.iloc[1]
    assert np.isnan(law.predict(asked(64))["probability_of_reaching"].item())


def test_the_noise_scale_says_something_where_one_batch_was_measured(rng):
    plain = ConvergenceLaw.fit(trials(rng, batches=(64,)))
    told = ConvergenceLaw.fit(trials(rng, batches=(64,), gradient_noise_scale=500.0))
    wide, narrow = plain.critical_batch_size, told.critical_batch_size
    assert narrow["lo"].item() < 500 < narrow["hi"].item()
    told_ratio = narrow["hi"].item() / narrow["lo"].item()
    assert told_ratio < wide["hi"].item() / wide["lo"].item()


def test_one_batch_answers_only_itself(rng):
    law = ConvergenceLaw.fit(trials(rng, batches=(64,)))
    answer = law.predict(asked(64, 128))
    assert answer["support"].tolist() == [Support.MEASURED, Support.UNSUPPORTED]
    assert np.isnan(answer["samples_to_target"].iloc[1])
    table = law.identifiable.set_index("parameter")
    assert table.loc["critical_batch_size", "remedy"] == "Measure another global batch."


def test_a_target_nobody_reached_supports_nothing(rng):
    law = ConvergenceLaw.fit(censored(trials(rng), 1000))
    assert (law.predict(asked(64, 128))["support"] == Support.UNSUPPORTED).all()


def test_rules_are_fitted_apart(rng):
    worse = trials(rng).assign(
        lr_rule="none", samples_to_target=lambda d: d["samples_to_target"] * 2
    )
    law = ConvergenceLaw.fit(pd.concat([trials(rng), worse]))
    answer = law.predict(asked(256, 256, lr_rule=["none", "sqrt"]))
    ratio = answer["samples_to_target"].iloc[0] / answer["samples_to_target"].iloc[1]
    assert ratio == pytest.approx(2, rel=0.1)
    with pytest.raises(SpecError, match="matches 2 of 2 convergence curves: lr_rule"):
        law.predict(asked(256))


def test_only_marks_that_spoil_convergence_leave_rows_out(rng):
    frame = trials(rng)
    marks = [["shared_node"], ["code_changed"]] * (len(frame) // 2)
    law = ConvergenceLaw.fit(frame.assign(validity=marks))
    assert law.left_out == {"validity": len(frame) // 2}


def test_rows_without_a_target_are_no_convergence():
    frame = pd.DataFrame({"world_size": [1], "step_time_s": [0.1]})
    with pytest.raises(FitError, match="Run trials of kind convergence"):
        ConvergenceLaw.fit(frame)


def test_the_order_of_rows_does_not_matter(rng):
    frame = trials(rng)
    first = ConvergenceLaw.fit(frame).predict(asked(300))
    second = ConvergenceLaw.fit(frame.iloc[::-1]).predict(asked(300))
    pd.testing.assert_frame_equal(first, second)
