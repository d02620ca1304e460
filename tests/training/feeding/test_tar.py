import io
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentences import refused

from scalelab.errors import SpecError
from scalelab.training.feeding.tar import Member, members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = "/".join(["a" * 90, "b" * 90, "c.png"])
TOO_LONG = "/".join(["d" * 120, "\N{GREEK SMALL LETTER ALPHA}" * 60, "e.png"])


def archive(
    files: dict[str, bytes], form: int = tarfile.GNU_FORMAT, **fields: bytes
) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def found(content: bytes) -> list[Member]:
    return list(members(io.BytesIO(content), "shard.tar"))


def read(content: bytes) -> dict[str, bytes]:
    return {
        each.name: content[each.offset : each.offset + each.size]
        for each in found(content)
    }


@pytest.mark.parametrize("form", FORMATS)
def test_files_are_found_as_tarfile_writes_them(form: int) -> None:
    files = {"scab/1.jpg": b"x" * 700, "rot/empty.jpg": b"", LONG: b"y" * 512}
    if form != tarfile.USTAR_FORMAT:
        files[TOO_LONG] = b"z"
    assert read(archive(files, form)) == files


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z\u00e9]{1,80}(/[a-z ]{1,80}){0,3}", fullmatch=True),
        st.binary(max_size=1100),
        max_size=4,
    ),
    st.sampled_from(FORMATS[1:]),
)
def test_any_names_and_contents_come_back(files: dict[str, bytes], form: int) -> None:
    assert read(archive(files, form)) == files


def test_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "scab").mkdir(parents=True)
    (tmp_path / "in" / "scab" / "1.jpg").write_bytes(b"1")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "in", arcname=".")
    names = [each.name for each in found((tmp_path / "a.tar").read_bytes())]
    assert names == ["./scab/1.jpg"]


def test_sizes_beyond_octal_numbers_are_read() -> None:
    content = bytearray(archive({"big": b""}))
    content[124:136] = struct.pack(">BxxxQ", 0x80, 2**33)
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    message = rf"^shard\.tar is cut off at byte {len(content)}: .* has {2**33} bytes\."
    with pytest.raises(SpecError, match=message):
        found(bytes(content))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, r"cut off at byte 0: the header at byte 0 is not whole"),
        (300, r"cut off at byte 300: the header at byte 0 is not whole"),
        (600, r"cut off at byte 600: the file whose header is at byte 0 has 700 bytes"),
        (1536, r"cut off at byte 1536: the header at byte 1536 is not whole, and not"),
        (2100, r"cut off at byte 2100: the file whose header is at byte 1536 has 90 b"),
    ],
)
def test_a_cut_off_archive_is_refused_with_the_place(length: int, message: str) -> None:
    whole = archive({"1.jpg": b"x" * 700, "2.jpg": b"y" * 90})
    with pytest.raises(SpecError, match=message):
        found(whole[:length])


def test_what_is_no_archive_is_refused() -> None:
    whole = bytearray(archive({"1.jpg": b"x" * 700, "2.jpg": b"y"}))
    whole[1540] ^= 1
    with refused("not_tar", "shard.tar", "512", "1536"):
        found(bytes(whole))
    with refused("not_tar", "byte 0"):
        found(b"\x1f\x8b" * 512)


def test_a_link_is_refused() -> None:
    linked = archive({"1.jpg": b""}, type=tarfile.LNKTYPE, linkname="0.jpg")
    with refused("link_in_tar", "'1.jpg'"):
        found(linked)


def test_damaged_pax_records_are_refused() -> None:
    whole = archive({TOO_LONG: b"z"}, tarfile.PAX_FORMAT)
    with refused("not_tar", "512"):
        found(whole.replace(b" path=", b"-path=", 1))
