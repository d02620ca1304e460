"""Commands that report in CSV files and in TensorBoard's event files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_specs import GLOBAL_BATCH, command_spec, write_program
from sentences import refused

from scalelab.errors import SpecError
from scalelab.experiment.program import MetricsSource
from scalelab.inputs.outcome import Outcome
from scalelab.launch.gang_agent import NodeAgent
from scalelab.reading.logs.files import EventFiles
from scalelab.reading.logs.lines import CsvLines

CSV = MetricsSource(csv="{trial_dir}/metrics.csv")
EVENTS = MetricsSource(tensorboard="{trial_dir}")
# A row every two milliseconds, until told to end; rows come in pieces.
WRITER = """
import os, time
file = open(os.environ["SCALELAB_TRIAL_DIR"] + "/metrics.csv", "a")
file.write({header!r} + "\\r\\n")
for n in range(1, 100_000):
    row = {row} + "\\r\\n"
    file.write(row[:2])
    file.flush()
    time.sleep(0.002)
    file.write(row[2:])
    file.flush()
"""


def read(header: str, *rows: str, **columns: str) -> list[object]:
    lines = CsvLines(columns)
    reports = [lines.read(row.encode()) for row in (header, *rows)]
    return [each and (each.step, each.samples, dict(each.metrics)) for each in reports]


def test_columns_are_found_by_their_usual_names() -> None:
    assert read("epoch,Global_Step,loss", "0,3,0.5", "0,,0.25", ",,") == [
        None,
        (3, None, {"epoch": 0.0, "loss": 0.5}),
        (None, None, {"epoch": 0.0, "loss": 0.25}),
        None,
    ]
    assert read("seen_samples;t", "64;0,5")[1] == (None, 64, {})
    # Of several the first name counts, and one is called by the user.
    assert read("iter\tstep", "8\t4")[1] == (4, None, {"iter": 8.0})
    assert read("iter,step", "8,4", step="iter")[1] == (8, None, {})


def test_a_file_that_is_written_anew_repeats_no_row() -> None:
    lines = CsvLines({})
    first = [b"step,loss", b"1,3", b"2,2"]
    again = [b"step,loss,val_loss", b"1,3,", b"2,2,9", b"3,1,"]
    reports = [lines.read(row) for row in (*first, *again)]
    assert [each.step for each in reports if each] == [1, 2, 3]


def test_a_header_without_a_count_is_refused() -> None:
    with refused("no_column_of_steps", "epoch, loss", "columns: {step: "):
        CsvLines({}).read(b"epoch,loss")
    with pytest.raises(SpecError, match=r"names 'n', and the header .* has: step, x\."):
        CsvLines({"step": "n"}).read(b"step,x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "row", "columns"),
    [
        ("epoch,iteration,loss", "f'0,{n},{1 / n}'", {}),
        ("n,loss", "f'{n},{1 / n}'", {"step": "n"}),
        ("samples,loss", f"f'{{n * {GLOBAL_BATCH}}},0.5'", {}),
    ],
)
def test_rows_are_read_while_the_command_runs(
    agent: NodeAgent, tmp_path: Path, header: str, row: str, columns: dict[str, str]
) -> None:
    program = WRITER.format(header=header, row=row)
    source = MetricsSource(csv="{trial_dir}/metrics.csv", columns=columns)
    spec = command_spec(tmp_path, program, metrics=source, steps=20, launcher="none")
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert 20 <= result.measurements["num_steps"] < 1000


@pytest.mark.slow
def test_a_csv_file_that_counts_nothing_ends_the_command_at_once(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = WRITER.format(header="epoch,loss", row="f'{n},0.5'")
    result = agent.run(command_spec(tmp_path, program, metrics=CSV), 0, None)
    assert result.outcome is Outcome.REFUSED
    assert "no column of metrics.csv counts steps" in result.reason


@pytest.mark.slow
def test_a_file_of_another_kind_ends_the_command_soon(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = WRITER.format(header="step,loss", row="f'{n},0.5'")
    source = MetricsSource(jsonl="{trial_dir}/metrics.csv")
    result = agent.run(command_spec(tmp_path, program, metrics=source), 0, None)
    assert result.outcome is Outcome.REFUSED
    assert "metrics.csv none was a JSON object" in result.reason


@pytest.mark.slow
def test_an_appended_file_keeps_its_header(agent: NodeAgent, tmp_path: Path) -> None:
    program = WRITER.replace("file.write({header!r}", "str({header!r}")
    spec = command_spec(
        tmp_path,
        program.format(header="", row="f'{n},0.5'").replace(
            "metrics.csv", "../../log.csv"
        ),
        metrics=MetricsSource(csv="{trial_dir}/../../log.csv"),
    )
    write_program(tmp_path, "step,loss\n7,0.25\n", "log.csv")
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result


@pytest.mark.slow
def test_what_stands_beside_a_missing_file_is_named(
    agent: NodeAgent, tmp_path: Path
) -> None:
    program = """
        import os
        open(os.environ["SCALELAB_TRIAL_DIR"] + "/log.csv", "w").write("step\\n1\\n")
    """
    result = agent.run(command_spec(tmp_path, program, metrics=CSV), 0, None)
    assert result.outcome is Outcome.FAILED
    assert " (beside that file there is: log.csv); and no optimizer" in result.reason


# Steps of ten milliseconds by the writer's own time; the validation counts epochs.
SCALARS = """
import os, time
from torch.utils.tensorboard import SummaryWriter
trial_dir = os.environ["SCALELAB_TRIAL_DIR"]
writer = SummaryWriter(trial_dir + "/runs/first", flush_secs=1)
validation = SummaryWriter(trial_dir + "/runs/second", flush_secs=1)
for n in range(1, 100_000):
    time.sleep(0.002)
    writer.add_scalar("train/loss", 1 / n, n, walltime=1000 + n / 100)
    if n % 10 == 0:
        validation.add_scalar("val/loss", 2 / n, n // 10, walltime=1000 + n / 100)
        writer.add_text("note", "step", n)
    if n % 20 == 0:
        writer.flush()
        validation.flush()
"""


@pytest.mark.slow
def test_event_files_are_read_while_the_command_runs(
    agent: NodeAgent, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    spec = command_spec(tmp_path, SCALARS, metrics=EVENTS, steps=40, launcher="none")
    result = agent.run(spec, 0, None)
    assert result.outcome is Outcome.COMPLETED, result
    assert result.measurements["step_time_s"] == pytest.approx(0.01)


@pytest.mark.slow
def test_steps_of_one_scalar_count_and_others_add_to_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    SummaryWriter(str(tmp_path)).close()
    with SummaryWriter(str(tmp_path)) as old:
        old.add_scalar("loss", 9.0, 99)
    files = EventFiles(tmp_path)
    with SummaryWriter(str(tmp_path / "new")) as writer:
        for time_s, (tag, step) in enumerate(
            [("loss", 10), ("lr", 10), ("loss", 20), ("val_acc", 1), ("loss", 0)]
        ):
            writer.add_scalar(tag, 0.5, step, walltime=time_s)
    assert [json.loads(line) for line in files.lines()] == [
        {"loss": 0.5, "step": 10, "t": 0},
        {"lr": 0.5, "step": 10, "t": 1},
        {"loss": 0.5, "step": 20, "t": 2},
        {"val_acc": 0.5},
        {"loss": 0.5, "step": 0, "t": 4},  # the same scalar goes back: an error
    ]
