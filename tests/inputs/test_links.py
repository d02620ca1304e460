import pytest

from scalelab.errors import SpecError
from scalelab.inputs.links import Link, parse_bandwidth, parse_latency


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1Gbit/s", 1.25e8),
        ("100 Gbit/s", 1.25e10),
        ("0.4Tbit/s", 5e10),
        ("25Gbps", 3.125e9),
        ("100Mbit/s", 1.25e7),
        ("12.5GB/s", 1.25e10),
        ("900MB/s", 9e8),
    ],
)
def test_bandwidths(text: str, bytes_per_s: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5us", 5e-6), ("5 µs", 5e-6), ("0.2ms", 2e-4), ("800ns", 8e-7), ("1s", 1.0)],
)
def test_latencies(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("10Gbit/s", Link(bandwidth_bytes_per_s=1.25e9)),
        ("10Gbit/s 50us", Link(bandwidth_bytes_per_s=1.25e9, latency_s=50e-6)),
        (" 10 Gbit/s, 50 us ", Link(bandwidth_bytes_per_s=1.25e9, latency_s=50e-6)),
    ],
)
def test_a_link_is_a_bandwidth_and_perhaps_a_latency(text: str, link: Link) -> None:
    read = Link.parse(text)
    assert read.bandwidth_bytes_per_s == pytest.approx(link.bandwidth_bytes_per_s)
    assert read.latency_s == pytest.approx(link.latency_s)
    assert Link.parse(str(read)) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "100",
            "'100' is not a bandwidth. Write a positive number and one of the units "
            "Mbit/s, Gbit/s, Tbit/s, MB/s, GB/s and TB/s, such as '100Gbit/s' or "
            "'12.5GB/s'.",
        ),
        ("", "'' is not a bandwidth."),
        ("-1Gbit/s", "'-1Gbit/s' is not a bandwidth."),
        ("fast", "'fast' is not a bandwidth."),
        (
            "100Gb/s",
            "'100Gb/s' may mean bits or bytes. Write 100Gbit/s for bits or 100GB/s for "
            "bytes.",
        ),
        (
            "0Gbit/s",
            "'0Gbit/s' is not the bandwidth of a network: it must lie between 1Mbit/s "
            "and 80Tbit/s.",
        ),
        (
            "10Gbit/s 5",
            "'5' is not a latency. Write a positive number and one of the units ns, "
            "us, ms and s, such as '5us' or '0.2ms'.",
        ),
        ("10Gbit/s 0us", "'0us' is not a latency."),
        ("10Gbit/s 5s", "'5s' is not a latency: it must be at most 1s."),
    ],
)
def test_what_is_no_link_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Link.parse(text)
    assert str(caught.value).startswith(message)
