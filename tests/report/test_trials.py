import pandas as pd
from made_up_runs import trial_row
from sentences import Golden

from scalelab.inputs.outcome import Outcome
from scalelab.recommend.answer.evidence import WholeRun
from scalelab.records.attempt import AttemptResult
from scalelab.records.observations import frame
from scalelab.report.subject import ReportSubject
from scalelab.report.tables import (
    curve_table,
    failures,
    memory_table,
    outcome_table,
    product_check_table,
    provenance_table,
    trial_table,
)

NOTHING_MEASURED = {"step_time_s": None, "throughput_samples_per_s": None}


def test_every_outcome_has_a_meaning() -> None:
    rows = [trial_row(1, 8, outcome=str(outcome), reason="x") for outcome in Outcome]
    table = outcome_table(frame(rows))
    assert len(table.rows) == len(Outcome)
    assert all(meaning for _, _, meaning in table.rows)
    assert table.rows[1][:2] == ("target not reached", "1")


def test_failures_lead_to_their_logs(golden: Golden) -> None:
    rows = [
        trial_row(1, 8),
        trial_row(2, 8, outcome="out_of_memory", reason="no room", trial_id="oom"),
        trial_row(
            2, 8, outcome="failed", reason="rank 1 died", trial_id="bad one", attempt=2
        ),
    ]
    result = AttemptResult(
        outcome=Outcome.FAILED,
        reason="rank 1 died",
        rank=1,
        traceback="Traceback",
        log="rank-1.log",
    )
    died, oom = failures(frame(rows), {("bad one", 2): result})
    assert died["attempt"] == "bad one-2"
    golden(died["configuration"])
    assert died["traceback"] == "Traceback"
    golden(died["files"])
    assert not died["is_measurement"]
    assert oom["is_measurement"]
    assert oom["files"] == "trials/oom/001/"


def test_imported_failures_have_no_files() -> None:
    row = trial_row(
        1, 8, outcome="failed", kind="imported", attempt=None, reason=None, seed=None
    )
    (failure,) = failures(frame([row]), {})
    assert failure["files"] == failure["reason"] == ""
    assert failure["configuration"].endswith("accumulation 1")


def test_trials_show_what_they_measured(golden: Golden) -> None:
    waiting = {"step_time_s": 0.02, "data_wait_s": 0.005, "gpu_utilization": 0.61}
    rows = [trial_row(1, 8, **waiting), trial_row(2, 8, validity=["shared_node"])]
    table = trial_table(frame(rows))
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert first["time of a step"] == "20 ms"
    assert (first["waiting for data"], first["device busy"]) == ("25%", "61%")
    assert first["ignored because"] == ""
    golden(second["ignored because"])
    assert "final metric" not in table.columns


def test_what_fits_lies_between_what_did_and_what_did_not() -> None:
    out = {"outcome": "out_of_memory", "reason": "no room", **NOTHING_MEASURED}
    rows = [
        trial_row(1, 128, gpu_memory_peak_bytes=3 * 2**30),
        trial_row(1, 64),
        trial_row(1, 256, **out),
        trial_row(1, 512, **out),
        trial_row(1, 512, precision="fp32"),
        trial_row(1, 64, device_name="T4", **out),
    ]
    assert memory_table(frame(rows)).rows == (
        ("resnet_cifar", "A100", "bf16", "128", "3,072 MiB", "256"),
        ("resnet_cifar", "T4", "bf16", "none", "", "64"),
    )


def test_whole_runs_are_compared_with_the_product() -> None:
    run = WholeRun(
        world_size=2, global_batch_size=64, measured_s=125.0, predicted_s=100.0
    )
    table = product_check_table([run])
    assert table is not None
    assert table.columns == (
        "devices",
        "global batch",
        "measured",
        "predicted",
        "error",
    )
    assert table.rows == (("2", "64", "2.1 min", "100 s", "-20%"),)
    assert product_check_table([]) is None


def test_curves_are_ranked_by_their_width() -> None:
    rows = [trial_row(count, 8, workload="wide") for count in (1, 2, 4)]
    rows += [trial_row(1, 8, workload=f"narrow {index}") for index in range(70)]
    table = curve_table(ReportSubject.of(frame(rows)))
    assert table.rows[0][0] == "workload=wide"
    assert table.rows[0][1:3] == ("3", "1 to 4")
    assert len(table.rows) == 60
    assert table.num_omitted == 11


def test_provenance_names_what_is_known_and_nothing_else() -> None:
    rows = [
        trial_row(1, 8, versions='{"torch": "2.13.0"}'),
        trial_row(
            1,
            8,
            versions="not json",
            hosts=None,
            started_at="2026-11-19T08:00:00+00:00",
        ),
    ]
    found = dict(provenance_table(frame(rows)).rows)
    assert found["from"] == "2026-11-19 08:00 UTC"
    assert found["to"] == "2026-11-20 08:01 UTC"
    assert found["hosts"] == "node0"
    assert found["versions"] == "torch 2.13.0, not json"
    assert "data" not in found


def test_an_empty_run_has_empty_tables() -> None:
    nothing: pd.DataFrame = frame([])
    assert outcome_table(nothing).rows == ()
    assert failures(nothing, {}) == ()
    assert trial_table(nothing).rows == ()
    assert memory_table(nothing).rows == ()
    assert provenance_table(nothing).rows == ()
