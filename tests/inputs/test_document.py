from pathlib import Path

import pytest
from sentences import refused

from scalelab.errors import SpecError
from scalelab.inputs.document import paragraph, parse_document, read_document


def parsed(text: str) -> object:
    return parse_document(f"x: {text}", source="test")["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e9", 1e9),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-3", -3),
        ("+3", 3),
        ("1_281_167", 1281167),
        ("010", 10),
        ("04:00:00", "04:00:00"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("2026-11-20", "2026-11-20"),
        ("'1'", "1"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
        ("\u00e9t\u00e9", "\u00e9t\u00e9"),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = parsed(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"test is empty\. Write at least one 'key: value' line\."),
        ("- 1", r"test holds a list\. It must be a mapping: 'key: value' lines\."),
        ("1: 2", r"test: the key 1 is not a word\. Rename it\."),
        (
            "a: 1\na: 2",
            r"the key 'a' stands there twice; keep one \(line 2, column 1\)\.",
        ),
        ("\ta: 1", r"found character '\\t' .* column 1\)\. Indent with spaces\."),
        ("a: &x 1\nb: *x", r"aliases \(\*name\) are not read; write the values out"),
        ("a: !!binary aGk=", "the tag tag:yaml.org,2002:binary is not read; leave it"),
        ("a: .inf", r"\.inf is not a finite number"),
        ("a: .NaN", r"\.NaN is not a finite number"),
        ("a: 1e999", "1e999 is not a finite number"),
        ("a: " + "1" * 31, "a number of more than 30 digits"),
        ("a: " + "[" * 30, "more than 20 levels of nesting"),
        ("? [a]\n: 1", "a key must be a word"),
        ("a: 1\n---\nb: 1", "expected a single document"),
        ("a: \x07", "special characters are not allowed"),
        ("a: !!int ten", "is not valid YAML"),
        ("a: !!float ten", "is not valid YAML"),
    ],
)
def test_what_could_mean_two_things_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_document(text, source="test")


def test_deep_mappings_in_list_do_not_add_up() -> None:
    rows = ", ".join(["{a: [1]}"] * 50)

    assert len(parse_document(f"x: [{rows}]", source="test")["x"]) == 50


def test_a_text_of_unreasonable_length_is_refused() -> None:
    with refused("document_too_long", "262144"):
        parse_document("a" * 300_000, source="test")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")

    assert read_document(path) == "a: 1"


def test_a_file_that_is_not_utf8_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: \xff")

    with refused("not_utf8", "byte 3", "0xff"):
        read_document(path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b" " * 300_000)

    with refused("unreadable", "262,144"):
        read_document(path)


def test_a_paragraph_is_one_bounded_printable_line() -> None:
    message = str(paragraph("a\n\nb\x07 " + "word " * 1000))

    assert message.startswith("a b? word")
    assert message.endswith(" ...")
    assert len(message) == 1000
