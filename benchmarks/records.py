"""Reading metric streams: JSON lines against the compacted copy of a run.

Writes the streams of a sweep as rank 0 does, compacts them, and reads both in turns.
Prints per kind of value the ratio of times (median and range over the repeats) and of
sizes. Two readers of JSON lines are measured: the project's own and pyarrow's, which is
multi-threaded C++ but refuses torn lines.

    python benchmarks/records.py [--trials 1000] [--rows 1000] [--repeats 5]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json

from scalelab.records.attempt import AttemptFiles
from scalelab.records.store import RunStore
from scalelab.records.streams import Streams

KINDS = {
    "milliseconds": "times rounded to 1 ms, loss to 4 digits (a typical script)",
    "clock": "times in full precision as the built-in loop reports them, float32 loss",
    "random": "every value random in all its bits (the worst case for any store)",
}


def step_rows(
    kind: str, num_rows: int, rng: np.random.Generator
) -> list[dict[str, object]]:
    """Return the rows of one trial, with the names of the built-in training loop."""
    phases = rng.gamma(50.0, [[2e-5], [1e-3], [2e-4], [1e-4]], size=(4, num_rows))
    steps = np.arange(1, num_rows + 1)
    loss = 2.3 * steps**-0.3 + 0.05 * rng.standard_normal(num_rows)
    if kind == "milliseconds":
        phases, loss = phases.round(3), loss.round(4)
    elif kind == "clock":
        loss = loss.astype(np.float32).astype(np.float64)
    else:
        phases, loss = rng.random((4, num_rows)), rng.random(num_rows)
    step_time_s = phases.sum(axis=0)
    t = step_time_s.cumsum()
    if kind == "milliseconds":
        step_time_s, t = step_time_s.round(3), t.round(3)
    names = ["step", "samples", "t", "step_time_s", "data_wait_s", "compute_s"]
    names += ["exposed_sync_s", "optimizer_s", "loss"]
    columns = [steps, steps * 256, t, step_time_s, *phases, loss]
    values = zip(*(column.tolist() for column in columns), strict=True)
    return [{"event": "step", **dict(zip(names, row, strict=True))} for row in values]


def write_streams(store: RunStore, kind: str, num_trials: int, num_rows: int) -> None:
    """Write one stream per trial."""
    rng = np.random.default_rng(20261120)
    for index in range(num_trials):
        files = AttemptFiles(store.attempt_directory(f"{index:012x}", 1))
        files.directory.mkdir(parents=True)
        rows = step_rows(kind, num_rows, rng)
        lines = (json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        files.stream.write_text("".join(lines))


def read_with_pyarrow(paths: list[Path]) -> int:
    """Read all streams with pyarrow's JSON reader; return the number of rows."""
    tables = [pyarrow.json.read_json(path) for path in paths]
    return len(pa.concat_tables(tables).to_pandas())


def timed(call: Callable[[], object]) -> float:
    """Return the wall seconds of a call."""
    started_at = time.perf_counter()
    call()
    return time.perf_counter() - started_at


def summary(values: list[float], unit: str) -> str:
    """Return median and range."""
    median = statistics.median(values)
    return f"{median:7.2f} {unit} ({min(values):.2f} to {max(values):.2f})"


def measure(kind: str, num_trials: int, num_rows: int, repeats: int) -> None:
    """Measure one kind of value and print its figures."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        lines, compacted = (
            RunStore.create(root / name, experiment_text="", fingerprint={})
            for name in ("lines", "compacted")
        )
        write_streams(lines, kind, num_trials, num_rows)
        (lines.directory / "trials").rename(root / "trials")
        for store in (lines, compacted):
            (store.directory / "trials").symlink_to(root / "trials")
        compact_s = timed(compacted.compact)
        paths = sorted((root / "trials").rglob("*.jsonl"))
        readers: dict[str, Callable[[], object]] = {
            "JSON lines": Streams(lines.directory).all,
            "JSON lines, pyarrow": lambda: read_with_pyarrow(paths),
            "compacted": Streams(compacted.directory).all,
        }
        seconds: dict[str, list[float]] = {name: [] for name in readers}
        for _ in range(repeats):
            for name, read in readers.items():
                seconds[name].append(timed(read))
        num_bytes = sum(path.stat().st_size for path in paths)
        copy = compacted.directory / "cache" / "streams.parquet"
        size_ratio = copy.stat().st_size / num_bytes
    print(f"\n{kind}: {KINDS[kind]}")
    for name, times in seconds.items():
        print(f"  read {name:20} {summary(times, 's')}")
    for name in list(seconds)[:2]:
        ratios = [
            a / b for a, b in zip(seconds[name], seconds["compacted"], strict=True)
        ]
        print(f"  {name} / compacted: {summary(ratios, 'times')}")
    print(
        f"  size compacted / JSON lines: {size_ratio:.3f} "
        f"(of {num_bytes / 2**20:.0f} MiB; compacting took {compact_s:.1f} s)"
    )


def main() -> None:
    """Parse the options and measure every kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000, help="per trial")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.trials} trials of {options.rows} rows, {options.repeats} repeats")
    for kind in KINDS:
        measure(kind, options.trials, options.rows, options.repeats)


if __name__ == "__main__":
    main()
