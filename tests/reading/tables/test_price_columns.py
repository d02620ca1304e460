"""Prices in the columns of a foreign table."""

import doctest
from pathlib import Path

import pytest

from scalelab.reading.tables import prices
from scalelab.session import import_table
from scalelab.session.run import Run

TABLE = """node,type,workers,nodes,local_batch_size,samples/s,{}
c4,cpu,1,1,8,10,{}
c4,cpu,2,2,8,19,{}
p2,cuda,1,1,8,80,{}
"""


def run(tmp_path: Path, *cells: str) -> Run:
    table = tmp_path / "plants.csv"
    table.write_text(TABLE.format(*cells))
    column = {"device_name": "node", "device_type": "type", "world_size": "workers"}
    return import_table(table, tmp_path / "run", column=column)


def test_the_examples_hold() -> None:
    assert doctest.testmod(prices).failed == 0


def test_two_columns_are_read_as_prices_of_each_device(tmp_path: Path) -> None:
    found = run(tmp_path, "on_demand,spot", "0.39,0.12", "0.39,0.12", "0.9,0.32")
    assert found.table_prices == (
        {
            "device": "c4",
            "on_demand": "0.39",
            "per": "device_hour",
            "spot": "0.12",
            "currency": "usd",
        },
        {
            "device": "p2",
            "on_demand": "0.9",
            "per": "device_hour",
            "spot": "0.32",
            "currency": "usd",
        },
    )
    assert "Prices from 'on_demand', 'spot': c4 0.39, p2 0.9." in found.import_notes
    assert not any(note.startswith("Not read") for note in found.import_notes)


@pytest.mark.slow
def test_they_are_what_an_answer_charges(tmp_path: Path) -> None:
    found = run(tmp_path, "on_demand,spot", "0.39,0.12", "0.39,0.12", "0.9,0.32")
    answer = found.recommend(job={"samples": 100_000})
    assert str(answer.price).startswith(
        "Price of c4: 0.39 usd per core-h on demand (0.12 on the spot market), by the "
        "table."
    )
    dearer = found.recommend(job={"samples": 100_000}, price={"p2": 50, "c4": "1usd"})
    assert dearer.chosen.device == "c4"
    assert "1 usd per core-h, as given" in str(dearer.price)


@pytest.mark.parametrize(
    ("name", "cells", "entry"),
    [
        (
            "price (eur/node-h)",
            ("2", "2", "3"),
            {"on_demand": "2", "per": "node_hour", "currency": "eur"},
        ),
        ("Price", ("$2", "$2", "$3"), {"on_demand": "2usd", "per": "device_hour"}),
    ],
)
def test_unit_and_currency_are_those_of_the_name_or_the_cells(
    name: str, cells: tuple[str, str, str], entry: dict[str, str], tmp_path: Path
) -> None:
    assert run(tmp_path, name, *cells).table_prices[0] == {"device": "c4", **entry}


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        (
            "price",
            ("2", "3", "4"),
            "Not read as a price: 'price', for c4 has several: 2 and 3.",
        ),
        ("on_demand", ("dear", "2", "2"), "'on_demand', 'dear' is not a price."),
        ("spot", ("2", "2", "2"), "Not read: 'spot'."),
    ],
)
def test_what_is_no_price_of_a_device_is_passed_over(
    name: str, cells: tuple[str, str, str], why: str, tmp_path: Path
) -> None:
    found = run(tmp_path, name, *cells)
    assert found.table_prices == ()
    assert any(why in note for note in found.import_notes)
