"""Tables as people have them give the measurements that they hold."""

from pathlib import Path

import pytest
from messy_tables import TOKENS, MessyTable, messy_tables, truth

from scalelab.session import import_table

TABLES = messy_tables()


def test_there_are_many_and_each_has_a_name() -> None:
    assert len(TABLES) > 30
    assert len({table.name for table in TABLES}) == len(TABLES)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_messy_table_says_what_was_measured(
    tmp_path: Path, table: MessyTable
) -> None:
    path = tmp_path / "resnet50.csv"
    path.write_bytes(table.text.encode())
    run = import_table(path, tmp_path / "run", **table.options)
    rows = run.observations
    timed = rows[rows["step_time_s"].notna()]
    names = ("world_size", "num_nodes", "local_batch_size", "global_batch_size")
    found = set(zip(*(timed[name].tolist() for name in names), strict=True))
    wanted = ("count", "nodes", "local", "total")
    assert found == {tuple(row[name] for name in wanted) for row in truth()}
    times = {
        (row.world_size, row.local_batch_size): row.step_time_s
        for row in timed.itertuples()
    }
    expected = {(row["count"], row["local"]): row["step"] for row in truth()}
    assert times == pytest.approx(expected, rel=1e-4)
    assert len(timed) == len(expected)
    assert len(run.fit_rows.curves) == 1
    assert "They are 12 rows of one curve." in run.import_notes
    assert run.import_doubts == ()
    assert rows["outcome"].eq("out_of_memory").sum() == table.num_oom
    assert len(rows) == len(timed) + table.num_oom
    left_out = [note for note in run.import_notes if note.startswith("Left out")]
    assert len(left_out) == table.num_left_out
    types = set(rows["device_type"].dropna())
    assert types == ({table.device_type} if table.device_type else set())
    if "token" in table.name:
        assert rows["sequence_length"].eq(TOKENS).all()
