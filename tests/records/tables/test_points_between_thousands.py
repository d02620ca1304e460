"""A point between thousands is no decimal point: what tells, and what is asked."""

from collections.abc import Callable

import pytest

from scalelab.errors import SpecError
from scalelab.session.run import Run

Import = Callable[..., Run]


def table(
    *rates: str, separator: str = ";", batch: str = "128", other: str = ""
) -> str:
    """Return a table of these throughputs, of doubling numbers of devices."""
    names = ["gpus", "nodes", "local_batch", "images/s", *["share"] * bool(other)]
    rows = [
        [str(2**at), "1", batch, rate, *[other] * bool(other)]
        for at, rate in enumerate(rates)
    ]
    return "\n".join(map(separator.join, [names, *rows]))


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize(
    ("text", "because"),
    [
        (table("714", "1.393"), "line 2 has '714', without a point, in the same"),
        (table("1.393", "1.002.714"), "line 3 has '1.002.714'."),
        (table("1.393", "2.714", batch="1.024"), "'local_batch' holds whole numbers."),
        (table("1.393", "2.714", other="0,35"), "line 2 has '0,35'."),
        (table("1.393", "2.714,5"), "line 3 has '2.714,5'."),
    ],
)
def test_other_numbers_tell_what_a_point_is(
    run_of: Import, text: str, because: str, separator: str
) -> None:
    run = run_of(text.replace(";", separator), accept_doubts=True)
    assert 1393 in run.observations["throughput_samples_per_s"].tolist()
    (note,) = (note for note in run.import_notes if "was read as" in note)
    assert because in note


@pytest.mark.parametrize("other", ["", "2.1.0"])
def test_between_semicolons_it_is_asked_about(run_of: Import, other: str) -> None:
    message = (
        r"resnet50\.csv, line 2, column 'images/s': '1\.393' is 1393 if its point "
        r"stands between thousands, else 1\.393; .* thousands \(1393\), or this one "
        r"with another number of decimals \(1\.3930\)\."
    )
    with pytest.raises(SpecError, match=message):
        run_of(table("1.393", "2.714", other=other))


@pytest.mark.parametrize("rates", [("1393", "2714"), ("1.3930", "2.714")])
def test_what_it_says_decides(run_of: Import, rates: tuple[str, str]) -> None:
    found = run_of(table(*rates)).observations["throughput_samples_per_s"]
    assert found.tolist() == list(map(float, rates))


def test_a_share_tells_that_it_is_a_decimal_point(run_of: Import) -> None:
    run = run_of(table("1.393", "2.714", other="0.93"))
    assert run.observations["throughput_samples_per_s"].tolist() == [1.393, 2.714]
    assert "'1.393' was read as 1.393: line 2 has '0.93'." in run.import_notes


def test_between_tabs_it_is_said(run_of: Import) -> None:
    run = run_of(table("1.393", "2.714", separator="\t"))
    assert run.observations["throughput_samples_per_s"].tolist() == [1.393, 2.714]
    assert "Write 1234 for 1.234 if that is wrong." in " ".join(run.import_notes)


def test_between_commas_it_is_a_decimal_point(run_of: Import) -> None:
    run = run_of(table("1.393", "2.714", separator=","))
    assert run.observations["throughput_samples_per_s"].tolist() == [1.393, 2.714]
    assert "was read as" not in " ".join(run.import_notes)
    message = r"'1\.024' must be a whole number such as 8 \(1024, if its point stands"
    with pytest.raises(SpecError, match=message):
        run_of(table("1.393", "2.714", separator=",", batch="1.024"))
