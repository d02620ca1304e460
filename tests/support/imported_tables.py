"""Runs of tables that a test or a benchmark has in memory, imported as users would."""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from generated_tables import Configuration

from scalelab.recommend.answer.rows import OutlookRow
from scalelab.session import import_table
from scalelab.session.run import Run

COLUMNS = {
    "workload": "workload",
    "gpu_type": "device_name",
    "gpus": "world_size",
    "nodes": "num_nodes",
    "local_batch": "local_batch_size",
    "accum_steps": "gradient_accumulation_steps",
    "step_time_s": "step_time_s",
}


def imported(rows: pd.DataFrame, home: Path, **options: Any) -> Run:
    """Import rows of a published or generated table; further columns come along."""
    where = Path(tempfile.mkdtemp(dir=home))
    beside = ["curve_id", "source", "global_batch"]
    table = rows.drop(columns=beside, errors="ignore").rename(columns=COLUMNS)
    whole = ["world_size", "num_nodes", "local_batch_size"]
    table[whole] = table[whole].round().astype(int)
    table.to_csv(where / "table.csv", index=False)
    return import_table(where / "table.csv", where / "run", **options)


def configuration(row: OutlookRow) -> Configuration:
    """Return the configuration of a row of an answer."""
    batch = row.batch
    return Configuration(
        row.world_size,
        row.num_nodes,
        batch.local_batch_size,
        batch.gradient_accumulation_steps,
    )
