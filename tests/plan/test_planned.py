import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.spec import Experiment
from scalelab.experiment.trial import Trial
from scalelab.plan.planned import PlannedTrials
from scalelab.plan.source import TrialSource
from scalelab.site.choice import site_of

SITE = site_of({"device_type": "cpu", "nodes": 2, "gpus_per_node": 4})
HEAD = """\
name: a
workload: digits_mlp
learning_rate: 0.1
measure: {long_trial: none}
"""
FIXED = HEAD + "gpus: [1, 2]\nlocal_batch_size: [8, 16]\n"
AUTO = (
    HEAD + "gpus: [1, 2]\nlocal_batch_size: {at_most: 1024, multiple_of: 8}\n"
    "precision: [fp32, bf16]\n"
)
FITS = {"fp32": 100, "bf16": 300}


def source(text: str) -> PlannedTrials:
    return PlannedTrials(Experiment.from_text(text), SITE)


def row(trial: Trial, outcome: str = "completed", **more: object) -> dict[str, object]:
    return {"trial_id": trial.trial_id, "outcome": outcome, **more}


def outcome_of(trial: Trial) -> str:
    fits = trial.local_batch_size <= FITS[trial.precision]
    return "completed" if fits else "out_of_memory"


def run(trials: TrialSource, *, at_once: int = 3) -> list[dict[str, object]]:
    """Run a source as the driver does, several trials under way at once."""
    rows: list[dict[str, object]] = []
    under_way: list[Trial] = []
    while True:
        while len(under_way) < at_once and (trial := trials.ask()) is not None:
            under_way.append(trial)
        if not under_way:
            return rows
        trial = under_way.pop(0)
        rows.append(row(trial, outcome_of(trial), local=trial.local_batch_size))
        trials.tell(rows[-1])


def test_a_plan_is_proposed_once_and_in_order() -> None:
    trials = source(FIXED)

    assert (trials.total, trials.remaining) == (12, 12)
    rows = run(trials)
    assert len({told["trial_id"] for told in rows}) == 12
    assert trials.remaining == 0
    assert trials.ask() is None


def test_what_an_earlier_driver_finished_is_not_run_again() -> None:
    rows = run(source(FIXED))
    again = source(FIXED)
    for told in rows[:5]:
        again.tell(told)

    assert again.remaining == 7
    assert len(run(again)) == 7


def test_more_values_extend_the_plan() -> None:
    rows = run(source(FIXED))
    longer = source(FIXED.replace("[8, 16]", "[8, 16, 32]"))
    for told in rows:
        longer.tell(told)

    assert {told["local"] for told in run(longer)} == {32}


class TestAuto:
    def test_the_largest_that_fits_is_found_for_each_setup(self) -> None:
        trials = source(AUTO)
        assert trials.total is None
        assert trials.remaining is None

        rows = run(trials)

        found = {
            setup.precision: size for setup, size in trials.local_batch_sizes.items()
        }
        assert found == {"fp32": 96, "bf16": 296}
        assert len({told["trial_id"] for told in rows}) == len(rows) == trials.total
        assert trials.remaining == 0

    def test_a_probe_that_the_plan_contains_is_not_run_again(self) -> None:
        trials = source(AUTO)
        rows = run(trials)
        probes = [told for told in rows if told["local"] not in (96, 296)]

        # 2 setups x 2 allocations x 3 repeats, the probes of the answers among them.
        assert len(rows) - len(probes) == 12

    def test_a_resumed_search_goes_on_where_it_was(self) -> None:
        rows = run(source(AUTO))
        again = source(AUTO)
        for told in rows[:9]:
            again.tell(told)

        rest = run(again)

        assert [told["trial_id"] for told in rows[:9] + rest] != []
        assert len(rest) == len(rows) - 9

    def test_a_probe_that_fails_ends_in_a_clear_error(self) -> None:
        trials = source(AUTO)
        first, second = trials.ask(), trials.ask()
        assert first is not None
        assert second is not None
        trials.tell(row(first, "failed", reason="ValueError: no such layer."))
        assert trials.ask() is None, "the other search is still under way"
        trials.tell(row(second, "failed"))

        with pytest.raises(
            SpecError,
            match=rf"local_batch_size=auto cannot be resolved: trial {first.trial_id}, "
            r"with local_batch_size=8 on 1 device, ended as failed: ValueError: no "
            r"such layer\. Make it run",
        ):
            trials.ask()

    def test_nothing_fits(self) -> None:
        trials = source(AUTO)
        while (trial := trials.ask()) is not None:
            trials.tell(row(trial, "out_of_memory"))
            if trial.local_batch_size == 1 and trial.precision == "bf16":
                break

        with refused("auto_batch_too_large", "local_batch_size=1"):
            trials.ask()

    def test_one_setup_that_does_not_fit_leaves_the_other(self) -> None:
        trials = source(AUTO)
        seen = []
        while (trial := trials.ask()) is not None:
            seen.append(trial)
            is_fp32 = trial.precision == "fp32"
            outcome = "host_out_of_memory" if is_fp32 else outcome_of(trial)
            trials.tell(row(trial, outcome))

        assert {trial.precision for trial in seen if trial.world_size == 2} == {"bf16"}

    def test_impossible_arithmetic_is_refused_before_anything_runs(self) -> None:
        with refused("batch_does_not_divide", "global_batch_size=63"):
            source(AUTO + "global_batch_size: 63\n")
