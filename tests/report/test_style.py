import pytest
from sentences import Golden

from scalelab.report.style import PALETTE, base_figure, empty_figure, plain
from scalelab.report.subject import Labels

DARK_PAGE, LIGHT_PAGE = "#14181d", "#ffffff"


def labels(**values: object) -> Labels:
    fields = {
        "curve": "resnet_cifar on A100",
        "device_word": "GPU",
        "device_hour_word": "GPU-h",
        "mode": "strong scaling: global batch 512 at every count",
        "baseline": "1 GPU",
        "repeats": "3 repeats",
        "interval": "80% interval",
        "is_emulated": False,
    }
    return Labels(**fields | values)  # type: ignore[arg-type]


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted([luminance(first), luminance(second)], reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colour", PALETTE)
@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
def test_every_colour_is_visible_on_light_and_dark(colour: str, page: str) -> None:
    # WCAG 2.1, 1.4.11: graphical objects
    assert contrast(colour, page) >= 3


@pytest.mark.slow
def test_a_figure_says_what_it_rests_on(golden: Golden) -> None:
    figure = base_figure("Speedup", labels().scaling_facts, labels())
    caption = figure.layout.title.subtitle.text.replace("<br>", " ")
    golden(caption)
    assert not figure.layout.annotations


def test_an_emulated_figure_carries_the_badge() -> None:
    figure = base_figure("Speedup", (), labels(is_emulated=True))
    assert "EMULATED: declared, not measured" in figure.layout.title.subtitle.text


def test_names_cannot_become_markup() -> None:
    figure = base_figure("<b>x</b>", ["<a href='y'>z</a>"], labels())
    assert "<a" not in figure.to_json()
    assert plain("a<b & c") == "a&lt;b &amp; c"


def test_an_empty_figure_says_why(golden: Golden) -> None:
    figure = empty_figure("Phases", "No trial recorded the phases.", labels())
    golden(figure.layout.annotations[0].text)
    assert not figure.data


def test_unknown_facts_are_left_out_of_the_caption() -> None:
    bare = labels(baseline="", repeats="", interval="", mode="")
    figure = base_figure("x", bare.scaling_facts, bare)
    assert figure.layout.title.subtitle.text == "resnet_cifar on A100"
