"""The same measurements in tables as people have them, each written in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

DEVICES_ON_NODE = 8
COUNTS = (1, 2, 4, 8, 16, 32)
BATCHES = (32, 64)
TOKENS = 512
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessyTable:
    """A table, how it is imported, and the measurements that it holds.

    Parameters
    ----------
    name
        What is messy about it.
    text
        The file.
    options
        Keywords of ``import_table``.
    num_oom
        Rows that say that memory did not suffice.
    num_left_out
        Rows that say nothing.
    device_type
        What the devices are, where the table tells.
    """

    name: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    num_oom: int = 0
    num_left_out: int = 0
    device_type: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The keywords as options of the command line."""
        return [
            word for name, value in self.options.items() for word in _words(name, value)
        ]


def _words(name: str, value: Any) -> Iterator[str]:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        yield option
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (option, f"{key}={each}")
    else:
        for each in value if isinstance(value, list) else [value]:
            yield from (option, str(each))


def step_time_s(count: int, local_batch: int) -> float:
    """Return the truth: a step on so many devices, on nodes of eight."""
    nodes = -(-count // DEVICES_ON_NODE)
    exchange = 0.002 * (count > 1) + 0.006 * (nodes - 1)
    return round(0.01 + 0.003 * local_batch + exchange, 6)


def truth() -> list[Row]:
    """Return what was measured, one row per configuration."""
    return [
        {
            "count": count,
            "nodes": -(-count // DEVICES_ON_NODE),
            "local": local,
            "total": local * count,
            "step": step_time_s(count, local),
            "rate": local * count / step_time_s(count, local),
        }
        for count in COUNTS
        for local in BATCHES
    ]


def csv(
    columns: dict[str, Callable[[Row], object]],
    *,
    separator: str = ",",
    rows: Iterable[Row] | None = None,
) -> str:
    """Write the measurements with a column for each of these names."""
    measured = list(truth() if rows is None else rows)
    lines = [
        list(columns),
        *([str(of(row)) for of in columns.values()] for row in measured),
    ]
    return "".join(
        separator.join(_quoted(cell, separator) for cell in line) + "\n"
        for line in lines
    )


def _quoted(cell: str, separator: str) -> str:
    return f'"{cell}"' if separator in cell else cell


def plain_columns(
    **others: Callable[[Row], object],
) -> dict[str, Callable[[Row], object]]:
    """Return the columns of a tidy table, some of them replaced, and further ones."""
    own: dict[str, Callable[[Row], object]] = {
        "gpus": lambda row: row["count"],
        "nodes": lambda row: row["nodes"],
        "local_batch": lambda row: row["local"],
        "step_time_s": lambda row: row["step"],
    }
    return own | others


def columns(
    *names: str, **others: Callable[[Row], object]
) -> dict[str, Callable[[Row], object]]:
    """Return some columns of a tidy table, then further ones."""
    own = plain_columns()
    return {name: own[name] for name in names} | others


def german(value: float) -> str:
    """Write a number with a decimal comma and points between thousands."""
    return f"{value:,.6f}".replace(",", "_").replace(".", ",").replace("_", ".")


def messy_tables() -> list[MessyTable]:
    """Return the tables."""
    return [*_numbers(), *_layouts(), *_wide(), *_speeds(), *_gaps(), *_extras()]


def _numbers() -> Iterator[MessyTable]:
    base = columns("gpus", "nodes", "local_batch")
    thousands = {
        "global batch": lambda row: f"{row['total']:,}",
        "Throughput": lambda row: f"{row['rate']:,.4f}",
    }
    yield MessyTable("thousands separators", csv(base | thousands))
    yield MessyTable(
        "decimal commas and semicolons",
        csv(
            {
                "GPUs": lambda row: row["count"],
                "Nodes": lambda row: row["nodes"],
                "Batch per GPU": lambda row: row["local"],
                "Global Batch": lambda row: f"{row['total']:,}".replace(",", "."),
                "Samples/s": lambda row: german(row["rate"]),
            },
            separator=";",
        ),
    )
    yield MessyTable(
        "decimal commas of three digits",
        csv(
            base | {"step_time_s": lambda row: f"{row['step']:.3f}".replace(".", ",")},
            separator=";",
        ),
    )
    milliseconds = {"step_time_ms": lambda row: f"{row['step'] * 1e3:,.3f}"}
    yield MessyTable(
        "points of three digits between tabs",
        csv(base | milliseconds, separator="\t"),
        {"decimal": "."},
    )
    yield MessyTable(
        "spaces and apostrophes between thousands",
        csv(
            base
            | {
                "gbs": lambda row: f"{row['total']:,}".replace(",", "\u202f"),
                "images/sec": lambda row: f"{row['rate']:,.4f}".replace(",", "'"),
            }
        ),
    )
    yield MessyTable(
        "units in cells",
        csv(
            {
                "#GPUs": lambda row: f"{row['count']} GPUs",
                "nodes": lambda row: f"{row['nodes']} nodes",
                "Batch size / GPU": lambda row: row["local"],
                "Time per step (s)": lambda row: f"{row['step'] * 1e3:.3f} ms",
            }
        ),
    )
    yield MessyTable(
        "percent signs",
        csv(
            base
            | columns("step_time_s")
            | {"Efficiency": lambda row: f"{100 - row['count']}%"}
        ),
    )


def _layouts() -> Iterator[MessyTable]:
    tidy = csv(plain_columns())
    header, body = tidy.split("\n", 1)
    yield MessyTable("tabs", csv(plain_columns(), separator="\t"))
    yield MessyTable("bars", csv(plain_columns(), separator="|"))
    yield MessyTable(
        "a line that names the separator",
        "sep=;\n" + csv(plain_columns(), separator=";"),
        {"header_row": 2},
    )
    yield MessyTable(
        "titles above the header",
        f"Scaling study,,,\n,,,\nresnet50 on A100,,,\n{tidy}",
        {"header_row": 4},
    )
    yield MessyTable(
        "titles with commas and quotation marks",
        f'JUWELS, "A100\nbatch 64, 2024-05-03, bf16\n{tidy}',
        {"header_row": 3},
    )
    lines = [f"| {line.replace(',', ' | ')} |" for line in tidy.splitlines()]
    for name, between in (("Markdown", "|---|:---:|--:|---|"), ("Org", "|--+--+--|")):
        text = "\n".join([lines[0], between, *lines[1:]])
        yield MessyTable(f"a {name} table", text)
    first, last = "\n".join(body.splitlines()[:6]), "\n".join(body.splitlines()[6:])
    yield MessyTable("two tables in one", f"{header}\n{first}\n{header}\n{last}")
    yield MessyTable("merged header cells", f"Where,,What,\n{tidy}", {"header_row": 2})
    yield MessyTable(
        "names below merged cells",
        "Setup,,Batch,,Step\ngpus,nodes,local,global,time (ms)\n"
        + csv(
            columns(
                "gpus",
                "nodes",
                "local_batch",
                total=lambda row: row["total"],
                ms=lambda row: row["step"] * 1e3,
            )
        ).split("\n", 1)[1],
        {
            "header_row": 2,
            "column": {
                "local_batch_size": "local",
                "step_time_ms": "time (ms)",
                "global_batch_size": "global",
            },
        },
    )
    twice = "".join(f"{line},{line.split(',')[0]}\n" for line in tidy.splitlines())
    yield MessyTable("a column twice", twice)
    index = [f"{number},{line}" for number, line in enumerate(body.splitlines())]
    yield MessyTable("an index without a name", "\n".join([f",{header}", *index]))
    spread = tidy.replace("\n", ",,\r\n\r\n")
    yield MessyTable(
        "a byte order mark, empty lines and columns", f"\ufeff{spread},,,,,\r\n"
    )
    wrapped = tidy.replace("step_time_s", '"Step time\n(s)"')
    yield MessyTable("a heading of two lines", wrapped)
    quoted = "\n".join(
        ",".join(f'" {cell} "' for cell in line.split(","))
        for line in tidy.splitlines()
    )
    yield MessyTable("spaces inside quotation marks", quoted)


def _wide() -> Iterator[MessyTable]:
    by_count = {
        "Batch size / GPU": lambda row: row["local"],
        **{f"{count} GPU{'s' * (count > 1)}": _rate_at(count) for count in COUNTS},
    }
    yield MessyTable(
        "a column for each number of devices",
        csv(by_count, rows=({"local": local} for local in BATCHES)),
        {
            "melt": {"world_size": "throughput_samples_per_s"},
            "constant": {"gpus_per_node": "8"},
        },
    )
    by_batch = {
        "gpus": lambda row: row["count"],
        **{f"bs {local} (ms)": _time_at(local) for local in BATCHES},
    }
    yield MessyTable(
        "a column for each batch",
        csv(by_batch, rows=({"count": count} for count in COUNTS)),
        {
            "melt": {"local_batch_size": "step_time_ms"},
            "constant": {"gpus_per_node": "8"},
        },
    )


def _rate_at(count: int) -> Callable[[Row], object]:
    return lambda row: round(row["local"] * count / step_time_s(count, row["local"]), 4)


def _time_at(local: int) -> Callable[[Row], object]:
    return lambda row: round(step_time_s(row["count"], local) * 1e3, 6)


def _speeds() -> Iterator[MessyTable]:
    base = columns("gpus", "nodes", "local_batch")
    one = base | {"throughput": lambda row: row["rate"] / row["count"]}
    yield MessyTable("throughput of one device", csv(one), {"per_device": True})
    yield MessyTable(
        "throughput of one device by its name",
        csv(base | {"Images/sec/GPU": lambda row: row["rate"] / row["count"]}),
    )
    tokens = {"tokens/s": lambda row: row["rate"] * TOKENS}
    yield MessyTable(
        "tokens and a sequence length",
        csv(base | tokens | {"seq_len": lambda row: TOKENS}),
    )
    yield MessyTable(
        "tokens per second", csv(base | tokens), {"tokens_per_sample": TOKENS}
    )
    yield MessyTable(
        "a throughput that counts tokens",
        csv(base | {"throughput": lambda row: row["rate"] * TOKENS}),
        {"tokens_per_sample": TOKENS},
    )
    for name, factor in {
        "step_time_ms": 1e3,
        "Iter time [us]": 1e6,
        "Zeit je Schritt (\u00b5s)": 1e6,
    }.items():
        options = {"column": {"step_time_s": name}} if name.startswith("Zeit") else {}
        yield MessyTable(
            f"times as {name}", csv(base | {name: _scaled("step", factor)}), options
        )
    yield MessyTable(
        "iterations per second", csv(base | {"it/s": lambda row: 1 / row["step"]})
    )


def _scaled(name: str, factor: float) -> Callable[[Row], object]:
    return lambda row: row[name] * factor


def _gaps() -> Iterator[MessyTable]:
    tidy = csv(plain_columns())
    for cell in ("N/A", "NaN", "-", ""):
        yield MessyTable(
            f"{cell!r} for a time", tidy + f"32,4,128,{cell}\n", num_left_out=1
        )
    yield MessyTable(
        "OOM for a time", tidy + "32,4,128,OOM\n1,1,256,CUDA out of memory\n", num_oom=2
    )
    remarks = tidy.splitlines()
    remarked = [f"{remarks[0]},Bemerkung", *(f"{line}," for line in remarks[1:])]
    yield MessyTable(
        "OOM as a remark", "\n".join([*remarked, "1,1,512,,OOM!"]), num_oom=1
    )
    status = [f"{remarks[0]},status", *(f"{line},ok" for line in remarks[1:])]
    yield MessyTable("OOM as a status", "\n".join([*status, "1,1,512,,oom"]), num_oom=1)


def _extras() -> Iterator[MessyTable]:
    partly = {name: of for name, of in plain_columns().items() if name != "nodes"}
    yield MessyTable(
        "devices of a full node",
        csv(partly | {"gpus_per_node": lambda row: DEVICES_ON_NODE}),
    )
    yield MessyTable(
        "devices of a full node, said",
        csv(partly),
        {"constant": {"gpus_per_node": "8"}},
    )
    results = plain_columns(
        speedup=lambda row: round(row["count"] * 0.93, 3),
        efficiency=lambda row: 0.93,
        memory_gb=lambda row: 10 + row["local"] / 8,
        n_rep=lambda row: 3 + row["count"] % 2,
        rep_cv=lambda row: row["step"] / 100,
        notes=lambda row: f"run {row['count']}",
    )
    yield MessyTable("results beside the times", csv(results))
    tpus = plain_columns(accelerator=lambda row: "TPU v4")
    yield MessyTable("TPUs", csv(tpus), device_type="tpu")
    yield MessyTable(
        "TPUs by their version",
        csv(plain_columns(tpu_type=lambda row: "v5e")),
        device_type="tpu",
    )
    both = {name: of for name, of in plain_columns().items() if name != "gpus"}
    yield MessyTable(
        "a count and a name of devices",
        csv({"GPU": lambda row: "A100", "GPUs": lambda row: row["count"]} | both),
    )
