import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sentences import refused

from scalelab.errors import SpecError, StoreError
from scalelab.reading.tables.file import ImportArguments
from scalelab.reading.tables.importing import import_table as imported
from scalelab.records.columns import COLUMNS_BY_NAME
from scalelab.records.store import RunStore

GOOD = """\
curve_id,model,GPU Type,nodes,gpus,local_batch,accum_steps,step_time_s,rep_cv,feed
a,bert,A100,1,2,32,1,0.5,,ram
a,bert,A100,2,8,32,2,0.8,0.02,ram
b,bert,A100,2,8,32,2,0.8,nan,none
"""


def import_table(path: Path, directory: Path, **options: Any) -> RunStore:
    """Import a table and return the store of its run."""
    asked = {"table": path, "directory": directory, **options}
    return imported(ImportArguments.model_validate(asked))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Any] | Path:
    def write(text: str, name: str = "table.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def table(**columns: object) -> str:
    """Return a one-row table: two devices, eight samples in half a second."""
    base = {"gpus": 2, "nodes": 1, "local_batch": 4, "step_time_s": 0.5}
    cells = {
        name: value for name, value in (base | columns).items() if value is not None
    }
    return ",".join(cells) + "\n" + ",".join(map(str, cells.values())) + "\n"


def test_a_table_becomes_a_run(write: Callable[..., Any], tmp_path: Path) -> None:
    store = import_table(write(GOOD), tmp_path / "theirs")
    observations = RunStore.open(tmp_path / "theirs").observations()
    assert store.name == "theirs"
    assert observations["kind"].eq("imported").all()
    assert observations["outcome"].eq("completed").all()
    assert observations["run"].eq("theirs").all()
    assert observations["trial_id"].is_unique
    expected = {
        "workload": ["bert"] * 3,
        "device_name": ["A100"] * 3,
        "world_size": [2, 8, 8],
        "gpus_per_node": [2.0, 4.0, 4.0],
        "data_parallel_size": [2, 8, 8],
        "global_batch_size": [64, 512, 512],
        "throughput_samples_per_s": [128.0, 640.0, 640.0],
        "repeat": [0, 0, 0],
        "options.feed": ["ram", "ram", "none"],
        "emulated": [False] * 3,
        "device_type": [pd.NA] * 3,
        "validity": [[]] * 3,
    }
    assert {name: observations[name].tolist() for name in expected} == expected
    pd.testing.assert_frame_equal(store.observations(), observations)
    assert {"options.curve_id", "options.rep_cv"}.isdisjoint(observations.columns)


def test_an_imported_run_says_where_it_comes_from(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    store = import_table(write(GOOD), tmp_path / "run", constant={"precision": "bf16"})
    source = store.fingerprint["imported"]
    assert source["table"] == "table.csv"
    assert source["columns"]["world_size"] == "gpus"
    assert source["constants"] == {"precision": "bf16"}
    assert source["unused"] == ["curve_id", "rep_cv"]
    assert len(source["sha256"]) == 64
    assert json.loads(store.experiment_text) == {"imported": source}


def test_recovering_an_imported_run_keeps_its_rows(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    store = import_table(write(GOOD), tmp_path / "run")
    assert store.recover() == []
    assert len(store.observations()) == len(store.rows()) == 3


def test_parquet_and_csv_give_the_same_rows(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    path = write(GOOD)
    pd.read_csv(path, keep_default_na=False, na_values=[""]).to_parquet(
        tmp_path / "table.parquet"
    )
    first = import_table(path, tmp_path / "1" / "run").rows()
    second = import_table(tmp_path / "table.parquet", tmp_path / "2" / "run").rows()
    assert first == second
    with refused("parquet_has_names"):
        import_table(tmp_path / "table.parquet", tmp_path / "run", header_row=2)


def test_a_spreadsheets_habits_are_accepted(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    text = GOOD.replace("\n", "\r\n").replace("A100", '" A100, 80 GB "')
    path = write("\ufeff" + text + ",,,,,,,,,\r\n\r\n")
    rows = import_table(path, tmp_path / "run").rows()
    assert [row["device_name"] for row in rows] == ["A100, 80 GB"] * 3


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({}, {"global_batch_size": 8, "throughput_samples_per_s": 16.0}),
        ({"throughput": 16.1}, {"throughput_samples_per_s": 16.1, "step_time_s": 0.5}),
        ({"step_time_s": None, "throughput": 20}, {"step_time_s": 0.4}),
        ({"nodes": None, "gpus_per_node": 1}, {"num_nodes": 2}),
        ({"gpus": None, "gpus_per_node": 3}, {"world_size": 3}),
        ({"gpus": 3, "nodes": 2}, {"gpus_per_node": 1.5}),
        (
            {"gpus": 16384, "nodes": None, "gpus_per_node": 8},
            {"num_nodes": 2048, "gpus_per_node": 8.0},
        ),
        ({"gpus": 8001, "nodes": None, "gpus_per_node": 8}, {"num_nodes": 1001}),
        ({"gpus": 7, "nodes": None, "gpus_per_node": 1.1667}, {"num_nodes": 6}),
        ({"gpus": 7, "nodes": None, "gpus_per_node": 2.5}, {"num_nodes": 3}),
        ({"gpus": 7, "nodes": 6, "gpus_per_node": 1.1667}, {"world_size": 7}),
        ({"gpus": 16, "nodes": None, "gpus_per_node": 8}, {"num_nodes": 2}),
        (
            {"gpus": 12, "nodes": None, "gpus_per_node": 8},
            {"num_nodes": 2, "gpus_per_node": 6.0},
        ),
        (
            {"gpus": 4, "nodes": 1, "gpus_per_node": 8},
            {"num_nodes": 1, "gpus_per_node": 4.0},
        ),
        ({"global_batch": 24}, {"gradient_accumulation_steps": 3}),
        ({"local_batch": None, "gbs": 8}, {"local_batch_size": 4}),
        ({"local_batch": None, "gbs": 8, "accum_steps": 2}, {"local_batch_size": 2}),
        ({"gpus": "2.0"}, {"world_size": 2}),
        ({"data_parallel_size": 1}, {"global_batch_size": 4}),
        (
            {"gpus": 8, "tp": 4, "global_batch": 64},
            {"data_parallel_size": 2, "gradient_accumulation_steps": 8},
        ),
        (
            {"gpus": 16, "TP": 2, "pp_size": 4, "cp": ""},
            {"data_parallel_size": 2, "global_batch_size": 8, "options.TP": 2},
        ),
        ({"gpus": 8, "tp": 3, "dp": 2}, {"data_parallel_size": 2}),
        ({"gpus": 8, "tp": "false", "pp": 1}, {"data_parallel_size": 8}),
        ({"seed": 3, "repeat": 5}, {"seed": 3, "repeat": 5}),
        ({"outcome": "out_of_memory", "step_time_s": ""}, {"step_time_s": None}),
        ({"exclusive_node": "True"}, {"exclusive_node": True}),
        ({"hosts": '"[""a"", ""b""]"'}, {"hosts": ["a", "b"]}),
        (
            {"started_at": "2026-01-01T00:00:00Z"},
            {"started_at": "2026-01-01T00:00:00Z"},
        ),
        ({"final_metric": "-1.5"}, {"final_metric": -1.5}),
        ({"lr_rule": "none"}, {"lr_rule": "none"}),
        ({"compile": "true"}, {"options.compile": True}),
        ({"options.width": "3"}, {"options.width": 3}),
        ({"zero_stage": "1e3"}, {"options.zero_stage": 1000}),
        ({"layout": ""}, {"options.layout": None}),
        ({"n_rep": "3"}, {"options.n_rep": None}),
        ({"step_time_s": None, "step_time_ms": 500}, {"step_time_s": 0.5}),
        ({"step_time_s": None, "step_time_ms": "12 ms"}, {"step_time_s": 0.012}),
        ({"step_time_s": None, "step_time_ms": "12 s"}, {"step_time_s": 12.0}),
        ({"step_time_s": "12 s"}, {"step_time_s": 12.0}),
        ({"grad_acc": 4}, {"gradient_accumulation_steps": 4, "global_batch_size": 32}),
        ({"GAS": 4}, {"gradient_accumulation_steps": 4}),
        ({"gpu_memory_peak_bytes": 7}, {"gpu_memory_peak_bytes": 7}),
        ({"peak_memory_gib": 1.5}, {"gpu_memory_peak_bytes": 1610612736}),
        ({"gpu_utilization": "80%"}, {"gpu_utilization": 0.8}),
        ({"precision": "BF16"}, {"precision": "bf16"}),
        ({"device_type": "gpu"}, {"device_type": "cuda"}),
        ({"gpu": "V100"}, {"device_name": "V100", "device_type": None}),
        ({"tpu": "v5e"}, {"device_name": "TPU v5e", "device_type": "tpu"}),
        ({"tpu_type": "v4-32"}, {"device_name": "TPU v4", "device_type": "tpu"}),
        ({"tpu_type": "TPU v5litepod-8"}, {"device_name": "TPU v5litepod"}),
        ({"status": "OOM", "step_time_s": ""}, {"outcome": "out_of_memory"}),
        ({"step_time_s": "OutOfMemoryError"}, {"outcome": "out_of_memory"}),
        ({"step_time_s": "CUDA_ERROR_OUT_OF_MEMORY"}, {"outcome": "out_of_memory"}),
        (
            {"peak_memory_gb": "OOM", "step_time_s": "0.1"},
            {"outcome": "out_of_memory", "step_time_s": None},
        ),
        ({"status": "crashed", "step_time_s": ""}, {"outcome": "failed"}),
        ({"step_time_s": "timeout"}, {"outcome": "timed_out", "step_time_s": None}),
    ],
)
def test_what_follows_is_filled_in(
    write: Callable[..., Any],
    tmp_path: Path,
    columns: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    (row,) = import_table(write(table(**columns)), tmp_path / "run").rows()
    assert {name: row.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("remark", "is_out_of_memory"),
    [
        ("OOM", True),
        ("OOM at 80 GB", True),
        ("CUDA out of memory", True),
        ("no OOM seen", False),
        ("OOM not seen", False),
        ("node rebooted; earlier OOM", False),
        ("OOM was feared here so the run was not started", False),
        ("oomph", False),
    ],
)
def test_a_short_remark_tells_of_memory(
    write: Callable[..., Any], tmp_path: Path, remark: str, is_out_of_memory: bool
) -> None:
    text = table(remark="") + f"2,1,8,,{remark}\n"
    outcomes = [
        row["outcome"] for row in import_table(write(text), tmp_path / "run").rows()
    ]
    assert outcomes == ["completed", *["out_of_memory"] * is_out_of_memory]


def test_rows_of_one_configuration_are_repeats(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    text = table() + "2,1,4,0.6\n2,1,8,0.9\n2,1,4,0.7\n"
    rows = import_table(write(text), tmp_path / "run").rows()
    assert [row["repeat"] for row in rows] == [0, 1, 0, 2]
    assert len({row["trial_id"] for row in rows}) == 4


def test_the_name_of_the_file_stands_in_for_the_workload(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    (row,) = import_table(write(table(), "vit.csv"), tmp_path / "run").rows()
    assert row["workload"] == "vit"


def test_columns_are_mapped_and_constants_set(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    path = write(table(step_time_s=None, nodes=None, t_iter=0.5, net="vit"))
    (row,) = import_table(
        path,
        tmp_path / "run",
        column={"step_time_s": "t_iter", "workload": "net", "options.axis": "net"},
        constant={"num_nodes": "2", "options.site": "here", "options.depth": "3"},
    ).rows()
    expected = {
        "step_time_s": 0.5,
        "workload": "vit",
        "options.axis": "vit",
        "num_nodes": 2,
        "options.site": "here",
        "options.depth": 3,
    }
    assert {name: row[name] for name in expected} == expected


def test_a_mapping_wins_over_an_alias(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    path = write(table(throughput=1.0, samples_rate=16.0))
    column = {"throughput_samples_per_s": "samples_rate"}
    (row,) = import_table(path, tmp_path / "run", column=column).rows()
    assert row["throughput_samples_per_s"] == 16.0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"nodes": 3},
            r"table\.csv, line 2: world_size=2 does not fit num_nodes=3: a node has at",
        ),
        (
            {"gpus": 12, "nodes": 3, "gpus_per_node": 8},
            r"world_size=12 does not fit num_nodes=3 and gpus_per_node=8: all nodes "
            r"are filled, but for the last one \(num_nodes=2\)\. Correct one of",
        ),
        (
            {"gpus": 16384, "nodes": 2046, "gpus_per_node": 8},
            r"world_size=16384 does not fit num_nodes=2046 .* \(num_nodes=2048\)",
        ),
        ({"gpus": ""}, r"line 2: gpus_per_node is empty\. Fill it in"),
        (
            {"global_batch": 9},
            r"global_batch_size=9 is not local_batch_size=4 \* data_parallel_size=2 \* "
            r"gradient_accumulation_steps=1 \(=8\)\. Correct one of them",
        ),
        (
            {"local_batch": None, "gbs": 7},
            r"global_batch_size=7 does not divide by data_parallel_size=2 \* "
            r"gradient_accumulation_steps=1 \(=2\): each device takes equally many",
        ),
        (
            {"gpus": 8, "tp": 3},
            r"world_size=8 does not fit options\.tp=3: the devices are divided among "
            r"copies of the model, .* or give data_parallel_size",
        ),
        (
            {"gpus": 8, "tensor_parallel": "on"},
            "world_size=8 does not fit options.tensor_parallel=on: ",
        ),
        ({"throughput": 8}, "looks like that of one device; --per-device says so"),
        (
            {"throughput": 16 * 512, "seq_len": 512},
            "looks like that of tokens; --tokens-per-sample N says so",
        ),
        (
            {"step_time_s": None, "tokens/s": 2048},
            r"line 2: 2048 tokens/s, but .* Say --tokens-per-sample N\.",
        ),
        ({"step_time_s": 500, "throughput": 16}, "looks like milliseconds"),
        ({"step_time_s": 0.5 / 60, "throughput": 16}, "looks like minutes"),
        (
            {"accum_steps": 3, "throughput": 16},
            r"factor of 0\.3333: .* looks like that of one forward pass",
        ),
        (
            {"step_time_s": "", "throughput": "n/a"},
            r"no row has a step time or a throughput\. Fill the column 'step_time_s'",
        ),
        (
            {"step_time_s": "-1"},
            r"line 2, column 'step_time_s': '-1' must be more than 0",
        ),
        ({"device_type": "A100"}, "'A100' must be one of cpu, cuda, tpu"),
        ({"outcome": "won"}, "'won' must be one of completed, target_not_reached"),
        ({"gpu_utilization": 80}, "must be a share between 0 and 1"),
        ({"energy_j": -1}, "must be at least 0"),
        ({"exclusive_node": "yes"}, "must be true or false"),
        ({"started_at": "2026-01-01"}, "must be a time with its offset"),
        ({"started_at": "noon"}, "must be a time with its offset"),
        ({"hosts": "a"}, "must be a JSON list of text"),
        ({"hosts": "[1]"}, "must be a JSON list of text"),
        (
            {"step_time_s": None, "stepp_time_s": 1},
            r"lacks columns .*: step_time_s or throughput_samples_per_s\. "
            r"'stepp_time_s' looks like step_time_s\. The time of a step is in "
            r"seconds, unless its name says otherwise \(step_time_ms\)\. Map a column "
            r"\(--column step_time_s=THEIRS\), or give .* \(--constant step_time_s=",
        ),
    ],
)
def test_what_cannot_be_true_is_refused(
    write: Callable[..., Any], tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    path = write(table(**columns))
    with pytest.raises(SpecError, match=message):
        import_table(path, tmp_path / "run")
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize(
    ("column", "constant", "message"),
    [
        (
            {"step_time_s": "step_tims"},
            {},
            r"no column 'step_tims', .* mean 'step_time_s'",
        ),
        ({"steptime_s": "gpus"}, {}, "'steptime_s' is no column that .* 'step_time_s'"),
        ({"kind": "gpus"}, {}, "'kind' is no column that a table can fill"),
        (
            {},
            {"num_nodes": "1"},
            "num_nodes is given by the column 'nodes' and by a value",
        ),
        (
            {},
            {"precision": "n/a"},
            r"precision='n/a' is empty\. Give a value or leave it out",
        ),
        ({}, {"seed": "x"}, "seed='x' must be a whole number"),
        ({}, {"kindness": "1"}, "'kindness' is no column"),
    ],
)
def test_wrong_names_are_refused(
    write: Callable[..., Any],
    tmp_path: Path,
    column: dict[str, Any],
    constant: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(SpecError, match=message):
        import_table(write(table()), tmp_path / "run", column=column, constant=constant)


def test_repeats_numbered_alike_are_refused(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    text = table(repeat=0) + "2,1,4,0.6,0\n"
    with refused("row_twice", "line 3", "repeat=0", "line 2"):
        import_table(write(text), tmp_path / "run")


def test_a_run_in_the_way_is_kept(write: Callable[..., Any], tmp_path: Path) -> None:
    import_table(write(table()), tmp_path / "run")
    with pytest.raises(StoreError, match="run exists already"):
        import_table(write(GOOD), tmp_path / "run")
    assert len(RunStore.open(tmp_path / "run").rows()) == 1


@pytest.mark.parametrize("name", ["gone.csv", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with refused("unreadable"):
        import_table(tmp_path / name, tmp_path / "run")


def test_a_giant_is_refused_before_it_is_read(
    write: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalelab.reading.tables.file.MAX_BYTES", 2**20)
    path = write(table())
    with path.open("ab") as stream:
        stream.truncate(3 * 2**20)
    with refused("unreadable", "1,048,576"):
        import_table(path, tmp_path / "run")


def test_every_alias_names_a_column() -> None:
    from scalelab.reading.tables.names import SETTABLE, known_names, plain
    from scalelab.reading.vocabulary import QUANTITIES

    headers = {name: each.headers.split() for name, each in QUANTITIES.items()}
    aliases = {name: words for name, words in headers.items() if words}

    assert set(aliases) <= set(SETTABLE) <= set(COLUMNS_BY_NAME)
    names = [name for names in aliases.values() for name in names]
    assert len(names) == len(set(names))
    assert not set(names) & set(COLUMNS_BY_NAME)
    assert all(plain(name) == name for name in known_names())
    for ours, others in aliases.items():
        for name in others:
            assert known_names()[name].column == ours, name


@pytest.mark.slow
def test_long_lists_of_columns_are_cut_short(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    names = ",".join(f"column_{index}" for index in range(500))
    with pytest.raises(SpecError, match=r"column_29, \.\.\. \(470 more\)\.$"):
        import_table(write(f"{names}\n{',' * 499}1\n"), tmp_path / "run")


def test_a_title_that_is_taken_for_the_names_is_suspected(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    message = (
        r"line 2 has 4 cells but the header has 2\. .* If line 1 does not name the "
        r"columns, say which does: --header-row\.$"
    )
    with pytest.raises(SpecError, match=message):
        import_table(write(f"A100, batch\n{table()}"), tmp_path / "run")
    message = r"line 3 has 1 cell but the header has 4\. .* If line 1 does not name "
    with pytest.raises(SpecError, match=message):
        import_table(write(f"{table()}2\n"), tmp_path / "run")
    with refused("empty_table"):
        import_table(write(table()), tmp_path / "run", header_row=9)


def test_lines_that_repeat_the_header_are_said(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    header, row = table().splitlines()
    text = "\n".join([header, row, header, "4,1,4,0.6", header])
    store = import_table(write(text), tmp_path / "run")
    told = store.fingerprint["imported"]["told"]
    assert "Passed over what repeats the header: lines 3, 5." in told


def test_a_row_of_sums_is_refused(write: Callable[..., Any], tmp_path: Path) -> None:
    message = r"line 4, column 'gpus' .* 'Mean' must be a whole .* or remove the row\."
    with pytest.raises(SpecError, match=message):
        import_table(write(f"{table()}4,1,4,0.6\nMean,,,0.5\n"), tmp_path / "run")


def test_a_workload_named_like_a_sum_is_none(
    write: Callable[..., Any], tmp_path: Path
) -> None:
    header, row = table().splitlines()
    text = f"model,{header}\nsum,{row}\nsort,{row}\n"
    rows = import_table(write(text), tmp_path / "run").rows()
    assert [each["workload"] for each in rows] == ["sum", "sort"]
