import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_up_sweeps import convergence, step_time, sweep
from sentences import Golden, refused
from toy_strategies import STALE, register

from scalelab.errors import FitError, NotIdentifiableError, SpecError
from scalelab.experiment.job import Job
from scalelab.inputs.links import Link
from scalelab.inputs.numerals import Interval
from scalelab.inputs.target import Target
from scalelab.recommend.advice import recommend
from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.recommend.answer.rows import OutlookRow
from scalelab.recommend.answer.text import answer_text
from scalelab.recommend.money.prices import Price
from scalelab.recommend.question.batches import AskedBatch
from scalelab.recommend.question.objective import Constraints

JOB = Job(epochs=10, samples_per_epoch=1_000_000)
HOUR = 3600.0


def hours(size: int, batch: int = 256) -> float:
    """True hours of the job at a fixed global batch, the best split of it."""
    times = [
        step_time(size, local, passes=batch // (size * local))
        for local in (16, 32)
        if batch % (size * local) == 0
    ]
    return 1e7 / batch * min(times) / HOUR


@pytest.fixture(scope="module")
def plain() -> Recommendation:
    return recommend(sweep(), JOB)


def row(recommendation: Recommendation, size: int) -> OutlookRow:
    return next(r for r in recommendation.rows if r.world_size == size)


def test_rows_follow_the_truth(plain: Recommendation) -> None:
    assert [r.world_size for r in plain.rows] == [1, 2, 4, 8, 16, 32, 64]
    for size in (1, 2, 4, 8, 16):
        found = row(plain, size)
        assert found.basis == "measured"
        assert found.time_s.value / HOUR == pytest.approx(hours(size), rel=0.05)
        assert found.time_s.lo < hours(size) * HOUR < found.time_s.hi
        expected = found.time_s.value * size / HOUR
        assert found.gpu_hours.value == pytest.approx(expected)
    assert row(plain, 32).basis == "extrapolated"


def test_the_batch_arithmetic_holds_in_every_row(plain: Recommendation) -> None:
    for found in plain.rows:
        batch = found.batch
        assert batch.global_batch_size == 256
        assert batch.data_parallel_size == found.world_size
        product = batch.local_batch_size * batch.data_parallel_size
        assert product * batch.gradient_accumulation_steps == 256


def test_efficiency_is_against_the_smallest_measured_allocation(
    plain: Recommendation,
) -> None:
    assert plain.baseline == "1 GPU"
    base = row(plain, 1)
    assert base.is_baseline
    assert base.scaling_efficiency == Interval(value=1.0, lo=1.0, hi=1.0)
    per_device = base.throughput_samples_per_s.value
    for found in plain.rows[1:]:
        share, rate = found.scaling_efficiency, found.throughput_samples_per_s.value
        assert found.scaling == "strong"
        assert share.value == pytest.approx(rate / found.world_size / per_device)
        assert share.lo < share.value < share.hi
    values = plain.to_json()["rows"][-1]
    assert values["scaling_efficiency_lo"] < values["scaling_efficiency"]


def test_the_next_doubling_is_the_next_row(plain: Recommendation) -> None:
    for size in (1, 2, 4, 8):
        found, following = row(plain, size), row(plain, 2 * size)
        assert found.next_world_size == 2 * size
        expected = following.time_s.value / found.time_s.value - 1
        assert found.next_time_change == pytest.approx(expected)
    assert plain.rows[-1].next_world_size is None
    assert plain.rows[-1].next_time_change is None


def test_without_limits_the_last_paying_doubling_is_chosen(
    plain: Recommendation,
) -> None:
    assert plain.meets_constraints
    assert plain.chosen.probability is None
    assert plain.chosen.basis == "measured"
    assert plain.knee is not None
    assert plain.knee.lo == plain.chosen.world_size


def test_the_knee_covers_the_declared_one_and_names_the_network(
    plain: Recommendation, golden: Golden
) -> None:
    sizes = [1, 2, 4, 8, 16]
    returns = [hours(n) / hours(2 * n) - 1 for n in sizes[:-1]]
    declared = next(n for n, gain in zip(sizes, returns, strict=False) if gain < 0.7)
    knee = plain.knee
    assert knee.lo <= declared
    assert knee.hi is not None
    assert knee.hi >= 2 * declared
    golden(knee.term)
    assert knee.probability_in_range > 0.9


def test_the_cheapest_that_meets_a_deadline_is_chosen() -> None:
    limit = hours(8) * 1.2
    found = recommend(
        sweep(), JOB, constraints=Constraints(limits={"time": limit * HOUR})
    )
    assert found.chosen.world_size == 8
    assert found.meets_constraints
    assert found.chosen.probability > 0.99
    assert row(found, 4).probability < 0.01
    assert found.limits == (f"< {limit:.1f} h",) or "h" in found.limits[0]


def test_the_fastest_that_meets_a_budget_is_chosen() -> None:
    price = 2.0
    budget = hours(4) * 4 * price * 1.05
    limits = Constraints(limits={"money": budget}, price=Price(amount=price))
    found = recommend(sweep(), JOB, constraints=limits)
    assert found.chosen.world_size == 4
    cost = found.chosen.cost
    assert cost.value == pytest.approx(found.chosen.gpu_hours.value * price)
    assert cost.lo <= cost.value <= cost.hi


@pytest.mark.slow
def test_an_exclusive_node_is_charged_for_all_its_devices() -> None:
    limits = Constraints(price=Price(amount=2.0), devices_on_node=4)
    found = recommend(sweep(), JOB, constraints=limits)
    for size, charged in ((1, 4), (2, 4), (4, 4), (16, 16)):
        time_h = row(found, size).time_s.value / HOUR
        assert row(found, size).gpu_hours.value == pytest.approx(charged * time_h)
        assert row(found, size).cost.value == pytest.approx(2 * charged * time_h)
    assert found.price == limits.charges_in_words("GPU-h")


@pytest.mark.slow
def test_nothing_meets_the_limits_gives_the_closest() -> None:
    limits = Constraints(limits={"time": 60.0})
    found = recommend(sweep(), JOB, constraints=limits)
    assert not found.meets_constraints
    assert found.chosen.probability < 0.9
    fastest_s = min(row.time_s.value for row in found.rows)
    assert found.chosen.time_s.value <= 1.05 * fastest_s
    counts = [row.world_size for row in found.rows if row.basis == "measured"]
    known = recommend(sweep(), JOB, constraints=limits, gpus=counts)
    assert known.chosen.basis == "measured"
    cheap = recommend(
        sweep(), JOB, constraints=Constraints(limits={"device_hours": 0.01})
    )
    assert not cheap.meets_constraints
    # of what is as near to the limit, the fastest is shown
    least = min(r.gpu_hours.value for r in cheap.rows)
    near = [r for r in cheap.rows if r.gpu_hours.value <= 1.02 * least]
    assert cheap.chosen.time_s.value == min(r.time_s.value for r in near)


def test_the_pareto_front_holds_what_nothing_beats(plain: Recommendation) -> None:
    for found in plain.rows:
        beaten = any(
            other.time_s.value < found.time_s.value
            and other.gpu_hours.value < found.gpu_hours.value
            for other in plain.rows
        )
        assert found.is_pareto == (not beaten)
    assert plain.pareto == tuple(r for r in plain.rows if r.is_pareto)


@pytest.mark.slow
def test_weak_scaling_keeps_the_local_batch_and_does_not_leave_its_range(
    golden: Golden,
) -> None:
    frame = sweep((1, 2, 4, 8), global_batch=None, local_batches=(32,))
    late = Constraints(limits={"time": hours(8, 256) * 0.75 * HOUR})
    found = recommend(frame, JOB, constraints=late)
    for r in found.rows:
        assert r.batch.local_batch_size == 32
        assert r.batch.global_batch_size == 32 * r.world_size
        assert r.is_eligible == (r.world_size <= 8)
    assert not found.meets_constraints
    assert found.chosen.world_size == 8
    note = next(note for note in found.notes if note.startswith("Not chosen"))
    golden(note)
    wider = recommend(
        frame,
        JOB,
        constraints=late,
        batches=AskedBatch(largest=1024),
        accept_unmeasured=True,
    )
    assert wider.chosen.world_size > 8


@pytest.mark.slow
def test_the_batch_stays_in_the_measured_range_whatever_is_asked() -> None:
    frame = sweep((1, 2, 3, 4, 8, 16), global_batch=None, local_batches=(8, 16, 32))
    fastest = min(hours(size, 512) for size in (8, 16))
    for limit_h in (0.2, fastest * 0.8, 3.0, 30.0):
        limits = Constraints(limits={"time": limit_h * HOUR})
        found = recommend(frame, JOB, constraints=limits)
        for r in found.rows:
            assert 8 <= r.batch.global_batch_size <= 512
            assert r.batch.local_batch_size <= 32
        assert found.meets_constraints == (limit_h > fastest)


@pytest.mark.slow
def test_what_is_missing_at_one_size_does_not_vanish_for_all() -> None:
    frame = sweep((1, 2, 4), global_batch=None, local_batches=(16, 32))
    is_gone = (frame["world_size"] == 2) & (frame["local_batch_size"] == 32)
    limits = Constraints(limits={"time": hours(4, 128) * 1.1 * HOUR})
    found = recommend(frame[~is_gone], JOB, constraints=limits)
    assert found.meets_constraints
    assert found.chosen.world_size == 4
    assert row(found, 2).batch.local_batch_size <= 32


@pytest.mark.slow
def test_a_measured_configuration_that_is_not_sure_is_named() -> None:
    frame = sweep((1, 2, 4), noise=0.05)
    limits = Constraints(limits={"time": hours(4) * HOUR})
    found = recommend(frame, JOB, constraints=limits)
    assert not found.meets_constraints
    assert found.chosen.world_size == 4 or any(
        note.startswith("Measured, but not sure enough: 4 GPUs (1x4), global batch 256")
        for note in found.notes
    )
    assert row(found, 4).probability < 0.9


@pytest.mark.slow
def test_two_world_sizes_answer_beyond_what_was_measured_with_care(
    golden: Golden,
) -> None:
    found = recommend(sweep((1, 2)), JOB)
    assert [r.world_size for r in found.rows] == [1, 2, 4, 8]
    beyond = row(found, 8)
    assert beyond.basis == "not measured here"
    assert not beyond.is_eligible
    assert beyond.time_s.hi > 2 * beyond.time_s.lo
    assert found.chosen.world_size <= 2
    (text,) = (text for text in found.unsupported if "inter_node_latency" in text)
    golden(text)
    declared = recommend(sweep((1, 2), emulated=True), JOB)
    assert not any("learn_from" in text for text in declared.unsupported)
    assert found.next_trial is not None
    assert found.next_trial.gpu_hours > 0
    assert found.next_trial.world_size > 2


@pytest.mark.slow
def test_what_was_not_measured_is_chosen_once_it_is_accepted() -> None:
    limits = Constraints(limits={"time": hours(2) * 0.7 * HOUR}, confidence=0.5)
    careful = recommend(sweep((1, 2)), JOB, constraints=limits)
    assert not careful.meets_constraints
    assert any("accept_unmeasured" in note for note in careful.notes)
    bold = recommend(sweep((1, 2)), JOB, constraints=limits, accept_unmeasured=True)
    assert bold.meets_constraints
    assert bold.chosen.basis == "not measured here"
    assert not any("accept_unmeasured" in note for note in bold.notes)


@pytest.mark.slow
def test_one_world_size_and_one_row() -> None:
    single = recommend(sweep((4,)), JOB)
    assert single.chosen.world_size == 4
    one = recommend(sweep((1,)).iloc[[0]], JOB)
    assert one.next_trial is not None
    assert one.chosen.world_size == 1
    assert one.chosen.time_s.lo < one.chosen.time_s.hi


def test_no_rows_and_only_spoilt_rows_are_errors() -> None:
    with pytest.raises(FitError, match="None of the 0 rows"):
        recommend(sweep().iloc[:0], JOB)
    spoilt = sweep()
    spoilt["validity"] = [["oversubscribed_cores"]] * len(spoilt)
    with pytest.raises(FitError, match=r"27 rows .* more ranks than cores\. "):
        recommend(spoilt, JOB)


@pytest.mark.slow
def test_the_faster_setting_is_chosen_and_said() -> None:
    fast = sweep(precision="bf16")
    fast["step_time_s"] *= 0.6
    both = pd.concat([sweep(precision="fp32"), fast], ignore_index=True)
    found = recommend(both, JOB)
    assert all(r.settings == {"precision": "bf16"} for r in found.rows)
    note = "Accuracy is assumed not to depend on precision (chosen: bf16)."
    assert note in found.notes


def test_allocations_can_be_named() -> None:
    found = recommend(sweep(global_batch=None), JOB, gpus=[12])
    assert row(found, 12).allocation == "3x4"
    assert row(found, 12).basis == "interpolated"
    assert [r.world_size for r in found.rows] == [1, 2, 4, 8, 12, 16]


def test_gaps_no_allocation_asks_for_are_not_mentioned() -> None:
    found = recommend(sweep((1, 2)), JOB, gpus=[1, 2])
    assert found.unsupported == ()
    assert found.next_trial is None


@pytest.mark.slow
def test_a_batch_known_not_to_fit_is_not_proposed() -> None:
    frame = sweep((1, 2, 4), local_batches=(16, 32))
    small = frame[(frame["local_batch_size"] == 16) | (frame["world_size"] == 1)]
    failed = frame.iloc[[-1]].assign(outcome="out_of_memory", step_time_s=None)
    found = recommend(pd.concat([small, failed], ignore_index=True), JOB)
    for r in found.rows:
        if r.world_size > 1:
            assert r.batch.local_batch_size <= 16
    assert found.left_out == ((("out_of_memory",), 1),)


@pytest.mark.slow
def test_rows_left_out_are_counted_and_the_cost_summed() -> None:
    frame = sweep()
    frame["validity"] = [["shared_node"]] * 2 + [[]] * (len(frame) - 2)
    found = recommend(frame, JOB)
    assert found.left_out == ((("shared_node",), 2),)
    assert found.num_observations == 27
    expected = frame["allocated_gpu_s"].sum() / HOUR
    assert found.sweep_gpu_hours == pytest.approx(expected)
    without = recommend(frame.drop(columns="allocated_gpu_s"), JOB)
    assert without.sweep_gpu_hours is None


@pytest.mark.slow
def test_a_table_somebody_else_measured_is_enough() -> None:
    frame = sweep(global_batch=None)
    table = pd.DataFrame(
        {
            "kind": "imported",
            "world_size": frame["world_size"],
            "gpus_per_node": np.minimum(frame["world_size"], 4),
            "local_batch_size": frame["local_batch_size"],
            "throughput_samples_per_s": frame["global_batch_size"]
            / frame["step_time_s"],
        }
    )
    found = recommend(table, JOB)
    # nobody accumulated there
    known = [r for r in found.rows[:5] if r.batch.gradient_accumulation_steps == 1]
    assert {r.basis for r in known} == {"measured"}
    assert found.workload == ""
    assert found.learning_rate is None


@pytest.mark.parametrize("law", ["amdahl", "usl", "power", "pollux"])
def test_rival_laws_can_be_asked(law: str) -> None:
    found = recommend(sweep(), JOB, law=law)
    assert found.law == law
    assert found.knee.term in ("step time grows", None)
    assert json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.slow
def test_more_than_a_thousand_rows_make_the_same_answer() -> None:
    frame = sweep(repeats=34)
    assert len(frame) > 300
    found = recommend(frame, JOB)
    assert found.chosen.world_size == recommend(sweep(), JOB).chosen.world_size


def test_json_is_plain(plain: Recommendation, golden: Golden) -> None:
    values = json.loads(json.dumps(plain.to_json(), allow_nan=False))
    assert values["rows"][0]["batch"]["global_batch_size"] == 256
    golden(values["knee"]["term"])


# --------------------------------------------------------------------- targets
TARGET = Job(target="val_acc >= 0.9")


@pytest.fixture(scope="module")
def both_families() -> pd.DataFrame:
    throughput = sweep(
        (1, 2, 4, 8), global_batch=None, lr_rule="sqrt", learning_rate=0.1
    )
    return pd.concat([throughput, convergence()], ignore_index=True)


@pytest.mark.slow
def test_a_trial_that_both_laws_leave_out_counts_once_in_each(
    both_families: pd.DataFrame,
) -> None:
    tried = both_families["samples_to_target"].notna()
    spoilt = both_families.assign(step_time_s=both_families["step_time_s"].fillna(0.1))
    spoilt["validity"] = [["code_changed"] if t else [] for t in tried.cumsum() == 1]
    answer = recommend(spoilt, TARGET)
    assert answer.left_out == ((("code_changed",), 1),)
    assert answer.left_out_of_convergence == ((("validity",), 1),)


@pytest.mark.slow
def test_a_target_takes_its_samples_from_the_convergence_trials(
    both_families: pd.DataFrame,
) -> None:
    found = recommend(both_families, TARGET)
    for r in found.rows:
        expected = 100_000 * (1 + r.batch.global_batch_size / 256)
        assert r.samples.value == pytest.approx(expected, rel=0.1)
        assert r.samples.lo < expected < r.samples.hi
    assert found.limits == ("val_acc >= 0.9",)
    assert not any("accuracy at batch" in note for note in found.notes)
    assert found.learning_rate.rule == "sqrt"


@pytest.mark.slow
def test_a_bigger_batch_pays_less_where_it_needs_more_samples(
    both_families: pd.DataFrame,
) -> None:
    by_target = recommend(both_families, TARGET)
    by_amount = recommend(both_families, Job(samples=200_000))
    gain = {
        name: found.rows[2].time_s.value / found.rows[3].time_s.value
        for name, found in (("target", by_target), ("amount", by_amount))
    }
    assert gain["target"] < gain["amount"]


@pytest.mark.slow
def test_growing_samples_can_be_what_ends_scaling(golden: Golden) -> None:
    throughput = sweep((1, 2, 4), global_batch=None, per_node=8)
    steep = convergence((32, 64, 128), critical=16)
    found = recommend(
        pd.concat([throughput, steep], ignore_index=True),
        TARGET,
        batches=AskedBatch(local_batch_size=32),
    )
    golden(found.knee.term)


@pytest.mark.slow
def test_the_amount_of_a_target_job_is_a_cap(both_families: pd.DataFrame) -> None:
    capped = Job(target="val_acc >= 0.9", samples=140_000)
    found = recommend(both_families, capped)
    needed = [100_000 * (1 + r.batch.global_batch_size / 256) for r in found.rows]
    assert min(needed) < 130_000
    assert max(needed) >= 150_000
    assert found.rows[0].probability > 0.9
    assert found.rows[-1].probability < 0.1


@pytest.mark.slow
def test_the_rule_that_needs_fewer_samples_is_used(both_families: pd.DataFrame) -> None:
    worse = convergence(lr_rule="none")
    worse["samples_to_target"] *= 2
    found = recommend(pd.concat([both_families, worse], ignore_index=True), TARGET)
    assert found.learning_rate.rule == "sqrt"
    chosen = found.chosen.batch.global_batch_size
    expected = 0.1 * (chosen / 64) ** 0.5
    nearest = found.learning_rate.value
    assert nearest == pytest.approx(expected, rel=0.5)


@pytest.mark.slow
def test_a_target_of_the_constraints_replaces_the_jobs(
    both_families: pd.DataFrame,
) -> None:
    target = Target.parse("val_acc >= 0.9")
    found = recommend(both_families, JOB, constraints=Constraints(target=target))
    assert found.rows[0].samples.value < 1e6


@pytest.mark.slow
def test_a_target_nobody_measured_is_not_identifiable(
    both_families: pd.DataFrame,
) -> None:
    with pytest.raises(
        NotIdentifiableError, match=r"Measured targets: val_acc >= 0\.9\."
    ):
        recommend(both_families, Job(target="val_acc >= 0.99"))
    with pytest.raises(NotIdentifiableError, match="Run convergence trials"):
        recommend(sweep(), TARGET)


def unreached(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows, had the convergence trials stopped before their target."""
    tried = rows["samples_to_target"].notna()
    return rows.assign(
        samples_to_target=rows["samples_to_target"].where(~tried),
        num_samples=rows["samples_to_target"],
        reached_target=(~tried).where(tried),
        outcome=rows["outcome"].where(~tried, "target_not_reached"),
    )


def test_a_target_no_run_reached_is_not_called_measured(
    both_families: pd.DataFrame,
) -> None:
    with pytest.raises(
        NotIdentifiableError,
        match=r"^the number of samples to val_acc >= 0\.9 is not identifiable\. All 15 "
        r"runs with this target stopped before it\. Let them train longer, ask for a "
        r"target they came to, or say how long the job is \(epochs, steps, "
        r"samples\)\.$",
    ):
        recommend(unreached(both_families), Job(target="val_acc >= 0.9"))


@pytest.mark.slow
def test_a_target_that_no_run_reached_is_said_in_a_note(both_families: Any) -> None:
    job = Job(target="val_acc >= 0.9", samples=10_000_000)
    answer = recommend(unreached(both_families), job)
    assert (
        "Not reached: val_acc >= 0.9, by 15 runs within 497,562 samples; the answer is "
        "for 10,000,000 samples, which may not suffice." in answer.notes
    )
    assert not any(note.startswith("Not measured: samples") for note in answer.notes)


@pytest.mark.slow
def test_what_was_asked_about_and_has_no_row_is_named(golden: Golden) -> None:
    found = recommend(sweep(), JOB, gpus=[12, 24])
    golden(*[each for each in found.notes if each.startswith("Not considered")])


def test_a_target_nobody_measured_falls_back_on_the_amount(
    both_families: pd.DataFrame,
) -> None:
    job = Job(target="val_loss <= 2", samples=1_000_000)
    found = recommend(both_families, job)
    assert found.rows[0].samples.value == 1e6
    assert (
        "Not measured: samples to val_loss <= 2; assumes 1,000,000 samples suffice."
        in found.notes
    )


@pytest.mark.slow
def test_accumulation_reaches_the_batch_whose_convergence_was_measured() -> None:
    one_batch = convergence((4096,))
    throughput = sweep((1, 2), global_batch=None)
    found = recommend(pd.concat([throughput, one_batch], ignore_index=True), TARGET)
    assert {r.batch.global_batch_size for r in found.rows} == {4096}


@pytest.mark.slow
def test_a_measured_size_that_does_not_divide_the_asked_batch_is_named() -> None:
    frame = sweep((1, 2, 8, 16), global_batch=None)
    found = recommend(frame, JOB, batches=AskedBatch(global_batch_size=40))
    assert [row.world_size for row in found.rows] == [1, 2, 4, 8]
    assert (
        "Not considered: 16 GPUs; a global batch of 40 cannot be shared evenly in "
        "local batches that are known to fit." in found.notes
    )


@pytest.mark.slow
def test_no_job_and_no_target_is_an_error() -> None:
    with refused("no_job", "scalelab recommend RUN --epochs"):
        recommend(sweep((1, 2)), None)


@pytest.mark.slow
def test_end_to_end_trials_correct_the_answer_and_are_named() -> None:
    target = Target.parse("val_acc >= 0.9")
    limits = Constraints(target=target)
    frame = pd.concat([sweep(), convergence()], ignore_index=True)
    batches = AskedBatch(global_batch_size=256)
    plain = recommend(frame, None, constraints=limits, batches=batches, law="amdahl")
    chosen = plain.chosen
    whole = frame[
        (frame["world_size"] == chosen.world_size)
        & (frame["global_batch_size"] == chosen.batch.global_batch_size)
        & frame["step_time_s"].notna()
    ].assign(
        kind="end_to_end",
        **convergence().iloc[0][["target_metric", "metric_mode", "lr_rule"]],
        target_value=0.9,
        reached_target=True,
        samples_to_target=200_000,
        time_to_target_s=1.2 * chosen.time_s.value,
    )
    told = recommend(
        pd.concat([frame, whole], ignore_index=True),
        None,
        constraints=limits,
        batches=batches,
        law="amdahl",
    )
    same = next(r for r in told.rows if r.world_size == chosen.world_size)
    assert chosen.time_s.value < same.time_s.value < 1.25 * chosen.time_s.value
    assert any("end-to-end trials took" in note for note in told.notes)
    assert not any("end-to-end" in note for note in plain.notes)


@pytest.mark.slow
def test_training_that_does_not_factorise_is_answered_by_its_whole_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(monkeypatch, STALE)
    rng = np.random.default_rng(0)

    def true_s(size: int) -> float:
        """Twice the steps' own time, which is all that a throughput trial measures."""
        return 200_000 / 256 * 2 * step_time(size, 256 // size)

    rows = [
        {
            "kind": "end_to_end",
            "outcome": "completed",
            "world_size": size,
            "num_nodes": -(-size // 4),
            "local_batch_size": 256 // size,
            "global_batch_size": 256,
            "step_time_s": step_time(size, 256 // size),
            "samples_to_target": 200_000,
            "time_to_target_s": true_s(size) * np.exp(0.01 * rng.standard_normal()),
            "reached_target": True,
            "lr_rule": "sqrt",
            "target_metric": "val_acc",
            "metric_mode": "max",
            "target_value": 0.9,
            "parallelism": "stale",
        }
        for size in (1, 2, 4, 8, 16)
        for _ in range(2)
    ]
    target = Target.parse("val_acc >= 0.9")
    table = pd.DataFrame(rows).convert_dtypes()
    stopped = table.iloc[[0]].assign(target_metric=pd.NA, target_value=pd.NA)
    table = pd.concat([table, stopped], ignore_index=True)
    found = recommend(table, None, constraints=Constraints(target=target))
    assert any("times follow whole runs" in note for note in found.notes)
    for size in (2, 4, 8, 16):
        time = row(found, size).time_s
        assert time.value == pytest.approx(true_s(size), rel=0.15)
        assert time.lo < true_s(size) < time.hi


@pytest.mark.slow
def test_a_local_batch_that_is_asked_for_is_the_only_one() -> None:
    frame = sweep((1, 2, 4), global_batch=None, local_batches=(16, 32))
    found = recommend(frame, JOB, batches=AskedBatch(local_batch_size=16))
    assert {r.batch.local_batch_size for r in found.rows} == {16}
    with pytest.raises(SpecError, match="known to fit"):
        recommend(frame, JOB, batches=AskedBatch(local_batch_size=4096))
    failed = sweep((1, 2, 4), global_batch=None, local_batches=(64,)).assign(
        outcome="out_of_memory", step_time_s=None
    )
    tried = pd.concat([frame, failed], ignore_index=True)
    with refused("batch_beyond_memory", "local_batch=64", "32"):
        recommend(tried, JOB, batches=AskedBatch(local_batch_size=64))


def test_where_no_batch_is_allowed_nothing_is_chosen() -> None:
    frame = sweep((1, 2, 4, 8), global_batch=None, local_batches=(64,))
    late = Constraints(limits={"time": 20 * HOUR})
    with refused("nothing_measured_to_choose"):
        recommend(frame, JOB, constraints=late, batches=AskedBatch(largest=16))


def test_less_than_a_node_may_be_all_that_was_measured() -> None:
    frame = sweep((3,), global_batch=None, local_batches=(16, 32), per_node=8)
    found = recommend(
        frame, JOB, devices_on_node=8, batches=AskedBatch(global_batch_size=512)
    )
    assert found.chosen.batch.global_batch_size == 512


def test_a_rival_law_takes_no_link() -> None:
    with refused("law_without_links", "'amdahl'"):
        recommend(sweep(), JOB, law="amdahl", link=Link.parse("1Gbit/s"))


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (2, 4, 8)])
def test_weak_efficiency_is_what_papers_print(sizes: tuple[int, ...]) -> None:
    frame = sweep(sizes, global_batch=None, local_batches=(64,), noise=0.0)
    rates = 64 / frame.groupby("world_size")["step_time_s"].median()
    found = recommend(frame, JOB)
    for size in sizes:
        share = row(found, size).scaling_efficiency.value
        assert share == pytest.approx(rates[size] / rates[sizes[0]], rel=0.015)
        assert row(found, size).scaling == (None if size == sizes[0] else "weak")


@pytest.mark.slow
def test_an_efficiency_does_not_depend_on_what_else_is_asked() -> None:
    frame = sweep((1, 2, 4, 8), global_batch=None, local_batches=(32, 64))
    every, some = recommend(frame, JOB), recommend(frame, JOB, gpus=[2, 8])
    for size in (2, 8):
        one, other = row(every, size), row(some, size)
        assert one.batch == other.batch
        # rounding of matrix products depends on their shape
        ends = [r.scaling_efficiency for r in (one, other)]
        assert all(ends)
        of_one, of_other = ((e.value, e.lo, e.hi) for e in ends if e is not None)
        assert of_one == pytest.approx(of_other, rel=1e-12)
        assert one.scaling == other.scaling


@pytest.mark.slow
def test_one_device_count_says_nothing_of_doublings_and_extremes() -> None:
    limits = Constraints(limits={"time": hours(4) * 0.5 * HOUR})
    for found in (recommend(sweep((4,)), JOB), recommend(sweep((4,)).iloc[[0]], JOB)):
        assert found.knee is None
        assert found.to_json()["knee"] is None
        assert found.objective == f"no other {found.device_word} count was measured"
        assert len(found.rows) > 1
        assert {row.next_world_size for row in found.rows} == {None}
        said = answer_text(found, 100)
        for claim in ("iminish", "doubling", "ideal gain", "next "):
            assert claim not in said
    closest = recommend(sweep((4,)), JOB, constraints=limits)
    assert not closest.meets_constraints
    assert "Fastest" not in answer_text(closest, 100)
