"""Parquet caches of a run, rebuilt whenever their source files change."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from scalelab.inputs.plain_files import make_folder, opened, parse_json
from scalelab.records.attempt import storing, write_atomically
from scalelab.records.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_KEY = b"scalelab"
# Rows; small enough to pick one attempt out quickly, large enough to read all.
_ROW_GROUP = 1 << 17


def write_table(
    path: Path,
    table: pa.Table,
    source: Mapping[str, Any],
    encodings: Mapping[str, str],
) -> None:
    """Write a table to the cache, with the state of its source."""
    import pyarrow.parquet as pq

    metadata = {**(table.schema.metadata or {}), _KEY: json.dumps(source).encode()}
    buffer = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        buffer,
        compression="zstd",
        use_dictionary=[name for name in table.column_names if name not in encodings],
        column_encoding=dict(encodings) or None,
        row_group_size=_ROW_GROUP,
    )
    write_cache(path, buffer.getvalue())


def write_cache(path: Path, content: bytes) -> None:
    """Write a file into the cache, a folder of a run."""
    run = path.parent.parent
    with storing(path):
        make_folder(path.parent, below=run)
    write_atomically(path, content, below=run, durable=False)


def own_file(path: Path) -> BinaryIO:
    """Open a file of the cache that this user has written; others may be made up."""
    file = opened(path, below=path.parent.parent)
    if os.fstat(file.fileno()).st_uid != os.geteuid():
        file.close()
        raise OSError(errno.EPERM, "it is somebody else's", str(path))
    return file


def read_source(path: Path) -> Mapping[str, Any] | None:
    """Return the source state of a cached table; None if no table is usable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with own_file(path) as file:
            content = pq.read_schema(file).metadata[_KEY]
        source: Mapping[str, Any] = parse_json(content, is_compared=True)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None

    return source


def read_observations(path: Path, source: Mapping[str, Any]) -> pd.DataFrame | None:
    """Read a cached observations frame if its source has not changed."""
    if not path.exists() or read_source(path) != source:
        return None
    import pandas as pd
    import pyarrow.parquet as pq

    with own_file(path) as file:
        observations: pd.DataFrame = pq.read_table(file).to_pandas()

    if any(column.name not in observations for column in COLUMNS):
        return None  # kept before there was such a column

    for column in COLUMNS:
        if column.kind == "list":
            values = observations[column.name]
            lists = [None if value is None else list(value) for value in values]
            observations[column.name] = pd.Series(lists, dtype="object")

    return observations
