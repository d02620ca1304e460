import numpy as np
import pandas as pd
import pytest

from scalelab.errors import FitError
from scalelab.laws.convergence.end_to_end import EndToEndLaw

FIXED, GROWTH = 0.3, 0.05


def step(n, b):
    return 0.1 * (0.7 * b / 32 + 0.3 * (n / 64) ** GROWTH)


def samples(batch):
    return 1e6 * (1 + batch / 4096)


def series(rng, sizes=(8, 16, 32, 64), batches=(512, 1024, 1024, 2048), noise=0.02):
    n, total = np.array(sizes), np.array(batches)
    need = samples(total) * np.exp(noise * rng.standard_normal(len(n)))
    time = (
        need / total * step(n, total / n) * np.exp(noise * rng.standard_normal(len(n)))
    )
    return pd.DataFrame(
        {
            "world_size": n,
            "global_batch_size": total,
            "samples_to_target": need,
            "time_to_target_s": time,
        }
    )


def reference(rng, batches=(256, 512, 1024, 2048, 4096), level=1.0):
    need = level * samples(np.array(batches)) * np.exp(0.01 * rng.standard_normal(5))
    return pd.DataFrame({"global_batch_size": batches, "samples_to_target": need})


ASKED = pd.DataFrame({"world_size": [256], "global_batch_size": [4096]})
TRUTH = samples(4096) / 4096 * step(256, 16)


def test_the_next_scale_is_predicted_with_what_it_costs(rng):
    answer = EndToEndLaw.fit(series(rng), reference(rng)).predict(ASKED)
    assert answer["time_to_target_s"].item() == pytest.approx(TRUTH, rel=0.2)
    assert answer["time_to_target_lo_s"].item() < TRUTH
    assert answer["time_to_target_hi_s"].item() > TRUTH
    product = answer["samples_to_target"] / 4096 * answer["step_time_s"]
    assert answer["time_to_target_s"].item() == pytest.approx(product.item())


def test_intervals_widen_with_distance(rng):
    law = EndToEndLaw.fit(series(rng), reference(rng))
    asked = pd.DataFrame({"world_size": [64, 256, 2048], "global_batch_size": 2048})
    answer = law.predict(asked)
    width = np.log(answer["time_to_target_hi_s"] / answer["time_to_target_lo_s"])
    assert (np.diff(width) > 0).all()


def test_a_series_of_exactly_this_form_lies_inside_its_intervals():
    for seed in range(15):
        rng = np.random.default_rng(seed)
        answer = EndToEndLaw.fit(series(rng), reference(rng)).predict(ASKED)
        assert answer["time_to_target_lo_s"].item() < TRUTH
        assert answer["time_to_target_hi_s"].item() > TRUTH


def test_intervals_cover_at_their_rate():
    """Runs scatter as the law believes: by 4%, and by 6% per doubling of devices."""

    def luck(rng, sizes):
        spread = np.hypot(0.04, 0.06 * np.log2(np.array(sizes) / 64))
        return np.exp(spread * rng.standard_normal(len(sizes)))

    inside = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        runs = series(rng)
        runs["time_to_target_s"] *= luck(rng, runs["world_size"])
        answer = EndToEndLaw.fit(runs, reference(rng)).predict(ASKED)
        lo, hi = answer["time_to_target_lo_s"], answer["time_to_target_hi_s"]
        inside.append(lo.item() <= TRUTH * luck(rng, [256]).item() <= hi.item())
    assert 0.7 < np.mean(inside) < 0.95


def test_a_submitter_keeps_part_of_his_own_level(rng):
    law = EndToEndLaw.fit(series(rng), reference(rng, level=0.8))
    assert 0 < law.log_level < -np.log(0.8)
    assert law.log_level_deviation < 0.05


def test_without_a_reference_the_runs_are_their_own(rng):
    law = EndToEndLaw.fit(series(rng))
    assert law.log_level == 0
    answer = law.predict(ASKED)["samples_to_target"].item()
    assert answer == pytest.approx(samples(4096), rel=0.25)


def test_one_run_answers_with_the_belief(rng):
    one = series(rng, sizes=(64,), batches=(2048,))
    answer = EndToEndLaw.fit(one, reference(rng)).predict(ASKED)
    ratio = (answer["time_to_target_hi_s"] / answer["time_to_target_lo_s"]).item()
    assert ratio > 1.3


def test_order_and_units_do_not_matter(rng):
    runs, known = series(rng), reference(rng)
    plain = EndToEndLaw.fit(runs, known).predict(ASKED)
    turned = EndToEndLaw.fit(runs.iloc[::-1], known).predict(ASKED)
    pd.testing.assert_frame_equal(plain, turned)
    hours = runs.assign(time_to_target_s=runs["time_to_target_s"] / 3600)
    scaled = EndToEndLaw.fit(hours, known).predict(ASKED)
    assert 3600 * scaled["time_to_target_s"].item() == pytest.approx(
        plain["time_to_target_s"].item()
    )


def test_runs_that_reached_nothing_say_nothing(rng):
    with pytest.raises(FitError, match="None of the 4 runs has both"):
        EndToEndLaw.fit(series(rng).assign(samples_to_target=np.nan))
