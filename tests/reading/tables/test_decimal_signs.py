"""A sign may be decimal or stand between thousands: what tells, and what is asked."""

from collections.abc import Callable

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.session.run import Run

Import = Callable[..., Run]


def table(*rates: str, separator: str = ";", batch: str = "128") -> str:
    """Return a table of these throughputs, of doubling numbers of devices."""
    names = ["gpus", "nodes", "local_batch", "images/s"]
    rows = [[str(2**at), "1", batch, rate] for at, rate in enumerate(rates)]
    return "\n".join(map(separator.join, [names, *rows]))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize(
    ("text", "because"),
    [
        (table("1.393", "1.002.714"), "line 3 has '1.002.714'."),
        (
            table("1.393", "2.714", batch="1.024"),
            "line 2 has '1.024' in the column 'local_batch' of whole numbers.",
        ),
        (table("1.393", "2.714,5"), "line 3 has '2.714,5'."),
    ],
)
def test_other_numbers_tell_what_a_point_is(
    run_of: Import, text: str, because: str, separator: str
) -> None:
    run = run_of(text.replace(";", separator), accept_doubts=True)
    assert 1393 in run.observations["throughput_samples_per_s"].tolist()
    assert f"Read commas as decimal signs: {because}" in run.import_notes


@pytest.mark.parametrize(
    ("separator", "rates", "asked"),
    [
        (";", ("1.393", "2.714"), "thousands, else 1.393; .* --decimal , for 1393, or"),
        ("\t", ("1.393", "2.714"), "else 1.393; .* or --decimal . for 1.393."),
        (";", ("1,393", "2,714"), "thousands, else 1.393; .* --decimal . for 1393, or"),
        ("\t", ("1,393", "2,714"), "else 1.393; .* or --decimal , for 1.393."),
        (",", ('"1,393"', '"2,714"'), "else 1.393; .* --decimal . for 1393, or"),
    ],
)
def test_what_nothing_tells_is_asked(
    run_of: Import, separator: str, rates: tuple[str, str], asked: str
) -> None:
    text = table(*rates, separator=separator)
    message = rf"csv, line 2, column 'images/s': '1[.,]393' is 1393 if its .* {asked}"
    with pytest.raises(SpecError, match=message):
        run_of(text)


@pytest.mark.parametrize(
    ("rate", "decimal", "read"),
    [
        ("1.393", ",", 1393),
        ("1.393", ".", 1.393),
        ("1,393", ".", 1393),
        ("1,393", ",", 1.393),
    ],
)
def test_what_is_said_decides(
    run_of: Import, rate: str, decimal: str, read: float
) -> None:
    run = run_of(table(rate, rate), decimal=decimal, accept_doubts=True)
    assert run.observations["throughput_samples_per_s"].tolist() == [read, read]


@pytest.mark.parametrize("rates", [("1393", "2714"), ("1.3930", "2.714")])
def test_what_it_says_decides(run_of: Import, rates: tuple[str, str]) -> None:
    found = run_of(table(*rates)).observations["throughput_samples_per_s"]
    assert found.tolist() == list(map(float, rates))


def test_between_commas_it_is_a_decimal_point(run_of: Import) -> None:
    run = run_of(table("1.393", "2.714", separator=","))
    assert run.observations["throughput_samples_per_s"].tolist() == [1.393, 2.714]
    message = r"'1\.024' must be a whole number such as 8 \(1024, if its point stands"
    with pytest.raises(SpecError, match=message):
        run_of(table("1.393", "2.714", separator=",", batch="1.024"))


def test_decimal_signs_may_not_be_mixed(run_of: Import) -> None:
    message = (
        r"line 2 has '0,5', with a decimal comma, and line 3 has '0\.6', with a decimal"
        r" point\. .* \(--decimal \. or --decimal ,\)\."
    )
    with pytest.raises(SpecError, match=message):
        run_of(table("0,5", "0.6"))


def test_a_number_of_one_reading_is_read(run_of: Import) -> None:
    run = run_of("gpus;nodes;local_batch;step_time_s\n1;1;32;1,310\n2;1;32;1,5\n")
    assert run.observations["step_time_s"].tolist() == [1.31, 1.5]


@pytest.mark.parametrize("decimal", ["'", "comma", ""])
def test_another_sign_is_refused(run_of: Import, decimal: str) -> None:
    with refused("no_decimal_sign"):
        run_of(table("1", "2"), decimal=decimal)
