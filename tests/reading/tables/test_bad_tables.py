import os
import random
from pathlib import Path

import pytest
from bad_tables import BadTable, as_csv, bad_tables, good_rows

from scalelab.errors import SpecError
from scalelab.session import import_table

TABLES = bad_tables()


def test_the_tables_are_many_and_always_the_same() -> None:
    assert len(TABLES) > 300
    assert bad_tables() == TABLES
    assert len({table.name for table in TABLES}) == len(TABLES)


def test_the_table_they_are_made_of_is_good(tmp_path: Path) -> None:
    path = tmp_path / "good.csv"
    path.write_bytes(as_csv(good_rows(random.Random(1))))
    assert len(import_table(path, tmp_path / "run").observations) == 12


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_bad_table_is_refused_in_one_paragraph(
    tmp_path: Path, table: BadTable
) -> None:
    path = tmp_path / f"table{table.suffix}"
    path.write_bytes(table.content)
    with pytest.raises(SpecError) as caught:
        import_table(path, tmp_path / "run", column=table.mapping)
    message = str(caught.value)
    assert "\n" not in message
    assert 40 < len(message) < 1600, message
    assert message.isprintable()
    assert message.endswith(".")
    assert path.name in message or any(map(repr(message).count, table.mapping))
    assert os.listdir(tmp_path) == [path.name]
