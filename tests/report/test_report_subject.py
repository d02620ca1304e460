from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_up_runs import outlook_row, planned, recommendation, strong_scaling, trial_row
from sentences import Golden

from scalelab.recommend.answer.recommendation import Recommendation
from scalelab.records.observations import frame
from scalelab.report.subject import ReportSubject, scaling_mode


def test_the_recommended_batch_is_the_plan(subject: ReportSubject) -> None:
    assert set(subject.planned["global_batch_size"]) == {512}
    assert set(subject.planned["world_size"]) == {1, 2, 4, 8, 16}
    assert subject.baseline
    assert subject.baseline.world_size == 1


def test_labels_name_mode_baseline_repeats_and_interval(
    subject: ReportSubject, golden: Golden
) -> None:
    labels = subject.labels
    assert labels.curve == "resnet_cifar on A100"
    golden(labels.mode)
    assert labels.baseline == "1 GPU"
    assert labels.repeats == "3 to 4 repeats"
    assert labels.interval == "80% interval"
    assert labels.bands == "bands: 80% interval"
    assert labels.devices == "GPUs"
    assert not labels.is_emulated


def test_only_the_curve_with_the_chosen_settings_is_shown(
    rng: np.random.Generator, golden: Golden
) -> None:
    fast = strong_scaling((1, 2), rng)
    slow = strong_scaling((1, 2), rng, precision="fp32")
    other = strong_scaling((1, 2), rng, workload="digits_mlp")
    fed = strong_scaling((1, 2), rng, **{"options.feed": "dali"})
    rows = planned((1, 2), 2, 2, settings={"precision": "bf16", "feed": "dali"})
    subject = ReportSubject.of(frame(fast + slow + other + fed), recommendation(rows))
    assert set(subject.rows["options.feed"]) == {"dali"}
    assert set(subject.rows["precision"]) == {"bf16"}
    assert set(subject.rows["workload"]) == {"resnet_cifar"}
    assert len(subject.curves) == 4
    golden(subject.labels.curve)


def test_a_device_the_table_does_not_name_hides_nothing(
    observations: pd.DataFrame, answered: Recommendation
) -> None:
    unnamed = observations.assign(device_name=pd.NA)
    assert len(ReportSubject.of(unnamed, answered).planned)
    without = observations.drop(columns="device_name")
    assert len(ReportSubject.of(without, answered).planned)


def test_without_an_answer_the_batch_measured_at_most_counts_is_shown(
    rng: np.random.Generator, golden: Golden
) -> None:
    rows = strong_scaling((1, 2, 4), rng) + [trial_row(n, 64) for n in (1, 2)]
    subject = ReportSubject.of(frame(rows))
    golden(subject.labels.mode)
    assert subject.labels.baseline == "1 GPU, as measured"
    assert subject.labels.interval == ""
    golden(subject.labels.curve)
    assert subject.baseline is None


def test_weak_scaling_is_recognised(golden: Golden) -> None:
    rows = [trial_row(count, 64) for count in (1, 2, 4)] + [trial_row(1, 256)]
    subject = ReportSubject.of(frame(rows))
    golden(subject.labels.mode)
    assert len(subject.planned) == 3


def test_of_equal_batches_the_fastest_arithmetic_is_the_plan() -> None:
    slow = trial_row(2, 32, gradient_accumulation_steps=2, global_batch_size=128)
    subject = ReportSubject.of(
        frame(
            [
                trial_row(1, 128),
                trial_row(2, 64),
                slow | {"step_time_s": 9.0, "throughput_samples_per_s": 128 / 9.0},
            ]
        )
    )
    at_two = subject.planned[subject.planned["world_size"] == 2]
    assert at_two["gradient_accumulation_steps"].tolist() == [1]


@pytest.mark.parametrize(
    ("rows", "mode"),
    [
        ([(4, 8, 32)], "one count only: 4 GPUs"),
        (
            [(1, 8, 8), (2, 6, 12)],
            "neither strong nor weak scaling: the best batch at each count",
        ),
        ([], ""),
    ],
)
def test_other_modes_are_named(rows: list[tuple[int, int, int]], mode: str) -> None:
    columns = ["world_size", "local_batch_size", "global_batch_size"]
    batches = pd.DataFrame(rows, columns=columns).assign(gradient_accumulation_steps=1)
    batches["data_parallel_size"] = batches["world_size"]
    assert scaling_mode(batches, "GPU") == mode


def test_words_for_devices_without_an_answer() -> None:
    cpu = ReportSubject.of(frame([trial_row(1, 8, device_type="cpu")])).labels
    assert (cpu.device_word, cpu.device_hour_word) == ("CPU slot", "core-h")
    emulated = ReportSubject.of(frame([trial_row(1, 8, emulated=True)])).labels
    assert emulated.device_word == "emulated GPU"
    assert emulated.is_emulated


def test_an_empty_run_has_a_subject() -> None:
    subject = ReportSubject.of(frame([]))
    assert subject.rows.empty
    assert subject.labels.scaling_facts == ("", "", "", "", "")
    assert len(subject.curves) == 0


def test_rows_unfit_for_a_fit_are_not_shown() -> None:
    rows = [trial_row(1, 8), trial_row(2, 4, validity=["shared_node"])]
    assert set(ReportSubject.of(frame(rows)).rows["world_size"]) == {1}


def test_another_placement_of_a_count_is_not_the_planned_one() -> None:
    rows = [outlook_row(1, 64), outlook_row(2, 64, num_nodes=1, is_chosen=True)]
    seen = frame([trial_row(2, 32, num_nodes=1), trial_row(2, 32, num_nodes=2)])
    subject = ReportSubject.of(seen, recommendation(rows))
    assert subject.planned["num_nodes"].tolist() == [1]
    assert len(subject.rows) == 2


def test_a_curve_without_the_option_is_told_from_those_with_it(
    rng: np.random.Generator,
) -> None:
    bare = strong_scaling((1, 2), rng)
    fed = strong_scaling((1, 2), rng, **{"options.feed": "dali"})
    plan = planned((1, 2), 2, 2)
    rows = (replace(plan[0], settings={"feed": "dali"}), plan[1])
    subject = ReportSubject.of(frame(bare + fed), recommendation(rows))
    feeds = subject.planned.groupby("world_size")["options.feed"].unique()
    assert list(feeds[1]) == ["dali"]
    assert feeds[2].isna().all()


def test_names_leave_out_what_is_not_known(observations: pd.DataFrame) -> None:
    answer = recommendation(planned((1, 2), 2, 2), device_name="", workload="")
    assert ReportSubject.of(observations, answer).labels.curve == "all rows"
    bare = observations.assign(device_name=pd.NA, precision=pd.NA)
    assert ReportSubject.of(bare).labels.curve == "resnet_cifar"
