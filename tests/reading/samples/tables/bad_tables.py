"""Several hundred tables that no import may accept, always the same ones."""

import gzip
import io
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261120
HEADER = (
    "workload",
    "gpu_type",
    "nodes",
    "gpus",
    "gpus_per_node",
    "local_batch",
    "accum_steps",
    "global_batch",
    "step_time_s",
    "throughput",
    "rep_cv",
)
WHOLE = ("nodes", "gpus", "local_batch", "accum_steps", "global_batch")
NUMBERS = ("gpus_per_node", "step_time_s", "throughput")
NO_NUMBERS = (
    "abc",
    "inf",
    "-inf",
    "Infinity",
    "1e999",
    "-1",
    "0",
    "1_000",
    "1,000",
    "0,125",
    "8 apples",
    "0x10",
    "#DIV/0!",
    "True",
    "1e",
    "\u0661",
    "=1+1",
    "1;2",
)
NO_WHOLES = ("1.5", "1e30", "0.999999", "9007199254740994")


@dataclass(frozen=True, slots=True)
class BadTable:
    """A table, what is wrong with it, and how it is imported."""

    name: str
    content: bytes
    suffix: str = ".csv"
    mapping: dict[str, str] = field(default_factory=dict)


Rows = list[dict[str, str]]


def good_rows(rng: random.Random, num_rows: int = 12) -> Rows:
    """Return the rows of a table that imports."""
    rows = []
    for _ in range(num_rows):
        nodes, per_node = rng.choice((1, 2, 4)), rng.choice((2, 4))
        local, accumulation = rng.choice((8, 32, 96)), rng.choice((2, 3))
        gpus = nodes * per_node
        samples, step_time_s = gpus * local * accumulation, rng.uniform(0.05, 3.0)
        values = (
            rng.choice(("resnet50", "bert")),
            "A100",
            nodes,
            gpus,
            float(per_node),
            local,
            accumulation,
            samples,
            f"{step_time_s:.6f}",
            f"{samples / step_time_s:.5f}",
            rng.choice(("", "0.02")),
        )
        rows.append(dict(zip(HEADER, map(str, values), strict=True)))
    return rows


def as_csv(rows: Rows) -> bytes:
    """Write rows as CSV, quoting what needs it."""
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    quoted = ([f'"{c}"' if "," in c else c for c in cells] for cells in lines)
    return "".join(",".join(cells) + "\n" for cells in quoted).encode()


def bad_tables(seed: int = SEED) -> list[BadTable]:
    """Return the tables."""
    rng = random.Random(seed)
    makers = (_no_text, _structures, _headers, _cells, _contradictions, _parquets)
    return [table for make in makers for table in make(rng)]


def _no_text(rng: random.Random) -> Iterator[BadTable]:
    good = as_csv(good_rows(rng))
    yield BadTable("empty", b"")
    yield BadTable("white space", b" \n\t\n\n")
    yield BadTable("byte order mark only", b"\xef\xbb\xbf")
    yield BadTable("only zeros", bytes(4096))
    yield BadTable("gzip", gzip.compress(good, mtime=0))
    yield BadTable("a spreadsheet", b"PK\x03\x04" + rng.randbytes(300))
    yield BadTable("a picture", b"\x89PNG\r\n\x1a\n" + rng.randbytes(300))
    yield BadTable("a web page", b"<!DOCTYPE html>\n<html><body>404</body></html>\n")
    yield BadTable("JSON", b'{"gpus": [1, 2], "step_time_s": [0.1, 0.2]}\n')
    yield BadTable("YAML", b"gpus: 8\nstep_time_s: 0.1\n")
    yield BadTable("a traceback", b"Traceback (most recent call last):\n  File\n")
    yield BadTable("UTF-16", good.decode().encode("utf-16"))
    yield BadTable("UTF-32", good.decode().encode("utf-32"))
    for index in range(20):
        yield BadTable(f"random bytes {index}", b"\xff" + rng.randbytes(400))
    for index in range(10):
        at = rng.randrange(len(good))
        yield BadTable(f"a zero byte at {at} ({index})", good[:at] + b"\0" + good[at:])
    for index in range(10):
        at = rng.randrange(len(good))
        spoilt = good[:at] + rng.choice((b"\xe4", b"\xff", b"\x80")) + good[at:]
        yield BadTable(f"a byte of another encoding at {at} ({index})", spoilt)


def _structures(rng: random.Random) -> Iterator[BadTable]:
    rows = good_rows(rng)
    good = as_csv(rows)
    lines = good.splitlines(keepends=True)
    yield BadTable("header only", lines[0])
    yield BadTable("header without its line end", lines[0].strip())
    yield BadTable("rows without header", b"".join(lines[1:]))
    for separator in (b":", b"  "):
        yield BadTable(f"separated by {separator!r}", good.replace(b",", separator))
    commas = [at for at, byte in enumerate(good) if byte == ord(",")]
    for index in range(40):
        cut = rng.choice(commas[len(HEADER) :])
        yield BadTable(f"cut at byte {cut} ({index})", good[:cut])
    for index in range(20):
        line = rng.randrange(1, len(lines))
        spoilt = [*lines]
        spoilt[line] = rng.choice(
            (
                lines[line].strip() + b",1\n",
                lines[line].partition(b",")[2],
                b"# a remark\n",
                b"1\n",
                lines[line].strip() + lines[line],
            )
        )
        yield BadTable(f"ragged in line {line + 1} ({index})", b"".join(spoilt))
    for index in range(10):
        line = rng.randrange(1, len(lines))
        spoilt = [*lines[:line], b'"' + lines[line], *lines[line + 1 :]]
        yield BadTable(f"open quotation in line {line + 1} ({index})", b"".join(spoilt))
    huge = [{**rows[0], "workload": "x" * 200_000}]
    yield BadTable("a cell of 200,000 letters", as_csv(huge))
    long = [{**rows[0], "step_time_s": "9" * 5000}]
    yield BadTable("a number of 5,000 digits", as_csv(long))


def _headers(rng: random.Random) -> Iterator[BadTable]:
    rows = good_rows(rng)

    def renamed(**names: str) -> bytes:
        return as_csv(
            [{names.get(name, name): row[name] for name in HEADER} for row in rows]
        )

    def without(*names: str) -> bytes:
        kept = [name for name in HEADER if name not in names]
        return as_csv([{name: row[name] for name in kept} for row in rows])

    for names in (
        ("step_time_s", "throughput"),
        ("gpus", "nodes"),
        ("gpus", "gpus_per_node"),
        ("nodes", "gpus_per_node"),
        ("local_batch", "global_batch"),
        HEADER[2:],
        ("step_time_s", "throughput", "gpus", "nodes", "local_batch", "global_batch"),
    ):
        yield BadTable(f"without {', '.join(names)}", without(*names))
    header, _, body = as_csv(rows).partition(b"\n")
    for name in HEADER:
        twice = header.replace(HEADER[0].encode(), name.encode(), 1)
        if name != HEADER[0]:
            yield BadTable(f"{name} twice", twice + b"\n" + body)
        blank = header.replace(name.encode(), b"", 1)
        yield BadTable(f"{name} has no name", blank + b"\n" + body)
    for other in ("world_size", "num_gpus", "GPUs ", "n-gpus"):
        yield BadTable(f"gpus and {other!r}", renamed(rep_cv=other))
    for name in ("step_time_ms", "iter_time_us", "step-time (min)", "t_h"):
        mapping = {"step_time_s": name}
        yield BadTable(f"mapped {name}", renamed(step_time_s=name), mapping=mapping)
    yield BadTable("control signs", renamed(rep_cv="rep\x07cv"))
    for ours, theirs in (
        ("step_time_s", "no such column"),
        ("stepp_time_s", "step_time_s"),
        ("kind", "workload"),
        ("trial_id", "workload"),
        ("", "workload"),
    ):
        mapping = {ours: theirs}
        yield BadTable(f"{theirs} as {ours}", as_csv(rows), mapping=mapping)


def _cells(rng: random.Random) -> Iterator[BadTable]:
    values = [(name, value) for name in (*WHOLE, *NUMBERS) for value in NO_NUMBERS]
    values += [(name, value) for name in WHOLE for value in NO_WHOLES]
    values += [("gpus", "1000001"), ("nodes", "2000000"), ("step_time_s", "86401")]
    for name, value in values:
        rows = good_rows(rng)
        line = rng.randrange(len(rows))
        rows[line][name] = value
        yield BadTable(f"{name}={value!r} in line {line + 2}", as_csv(rows))


def _contradictions(rng: random.Random) -> Iterator[BadTable]:
    def multiply(name: str, factor: float) -> Callable[[dict[str, str]], None]:
        def change(row: dict[str, str]) -> None:
            row[name] = f"{float(row[name]) * factor:.9g}"

        return change

    def per_device(row: dict[str, str]) -> None:
        row["throughput"] = str(float(row["throughput"]) / int(row["gpus"]))

    def per_pass(row: dict[str, str]) -> None:
        row["step_time_s"] = str(float(row["step_time_s"]) / int(row["accum_steps"]))

    changes: list[tuple[str, Callable[[dict[str, str]], None]]] = [
        (f"{name} times {factor:.2g}", multiply(name, factor))
        for name in (*WHOLE, *NUMBERS)
        for factor in ((1 / 2, 1 / 3, 1 / 5) if name == "gpus_per_node" else (2, 3, 5))
    ]
    changes += [
        ("milliseconds", multiply("step_time_s", 1e3)),
        ("microseconds", multiply("step_time_s", 1e6)),
        ("minutes", multiply("step_time_s", 1 / 60)),
        ("throughput per device", per_device),
        ("time per pass", per_pass),
        ("a tenth off", multiply("throughput", 1.1)),
    ]
    for name, change in changes:
        for everywhere in (False, True):
            rows = good_rows(rng)
            for row in rows if everywhere else [rng.choice(rows)]:
                change(row)
            where = "in all rows" if everywhere else "in one row"
            yield BadTable(f"{name} {where}", as_csv(rows))


def _parquets(rng: random.Random) -> Iterator[BadTable]:
    def write(columns: dict[str, object]) -> bytes:
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer)
        return buffer.getvalue()

    rows = good_rows(rng)
    columns: dict[str, object] = {
        name: [row[name] for row in rows] for name in HEADER if name not in NUMBERS
    }
    columns |= {name: [float(row[name]) for row in rows] for name in NUMBERS}
    good = write(columns)
    yield BadTable("a Parquet head", good[:4], ".parquet")
    for index in range(10):
        cut = rng.randrange(4, len(good) - 1)
        yield BadTable(f"Parquet cut at {cut} ({index})", good[:cut], ".parquet")
    for value in (float("inf"), -1.0, 0.0):
        times = [*columns["step_time_s"]]  # type: ignore[misc]
        times[rng.randrange(len(times))] = value
        spoilt = write(columns | {"step_time_s": times})
        yield BadTable(f"Parquet with step_time_s={value}", spoilt, ".parquet")
    yield BadTable("Parquet without rows", write({"gpus": pa.array([])}), ".parquet")
    yield BadTable("Parquet without times", write({"gpus": [1]}), ".parquet")
    nested = [{"a": 1}] * len(rows)
    yield BadTable("nested Parquet", write(columns | {"gpus": nested}), ".parquet")
