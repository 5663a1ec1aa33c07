"""The sizes in the header of a GGUF file are compared with the size of the file."""

from __future__ import annotations

import io
import struct

import pytest

from etplugins.packed import gguf_header

BLOCKS = {0: (1, 4), 8: (32, 34)}


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content)) + content.encode()


def tensor(sizes: list[int], kind: int = 0, place: int = 0) -> bytes:
    return text("w") + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, place)


def check(values: bytes = b"", count: int = 0, tensors: tuple[bytes, ...] = (), data: int = 0) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + values + b"".join(tensors)
    content = head + bytes(-len(head) % 32) + bytes(data)
    gguf_header.check(io.BytesIO(content), len(content), BLOCKS)


def test_a_sound_header_is_accepted() -> None:
    names = text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("")
    numbers = text("scores") + struct.pack("<IIQ2f", 9, 6, 2, 1, 2)
    check(names + numbers, 2, (tensor([4, 2]), tensor([64], 8, 32)), 32 + 68)


@pytest.mark.parametrize(
    ("values", "count", "tensors", "message"),
    [
        (text("k") + struct.pack("<IIQ", 9, 8, 1 << 60), 1, (), "it ends before"),
        (text("k") + struct.pack("<IIQ", 9, 6, 1 << 62), 1, (), "it ends before"),
        (struct.pack("<Q", 1 << 63), 1, (), "it ends before"),
        (b"", 1 << 63, (), "it ends before"),
        (text("k") + struct.pack("<IIQ", 9, 0, 2_000_000) + bytes(2_000_000), 1, (), "at most 1,500,000 are read"),
        (
            (text("k") + struct.pack("<IIQ", 9, 0, 800_000) + bytes(800_000)) * 2,
            2,
            (),
            "its lists have 1,600,000 items",
        ),
        (text("k") + struct.pack("<IIQI", 9, 9, 1, 9), 1, (), "the unknown type 9"),
        (text("k") + struct.pack("<I", 77), 1, (), "the unknown type 77"),
        (text("general.alignment") + struct.pack("<II", 4, 3), 1, (), "not a power of two"),
        (b"", 0, (tensor([1 << 40, 1 << 40]),), "its tensors need"),
        (b"", 0, (tensor([1], place=1 << 50),), "its tensors need"),
        (b"", 0, (tensor([1], kind=99),), "the unknown type 99"),
        (b"", 0, (tensor([33], kind=8),), "not a multiple of 32"),
        (b"", 0, (tensor([1] * 5),), "5 dimensions"),
    ],
)
def test_a_header_that_announces_too_much_is_an_error(
    values: bytes, count: int, tensors: tuple[bytes, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check(values, count, tensors)


def test_other_files_are_no_gguf_files() -> None:
    for content, message in ((b"PK\x03\x04" + bytes(32), "not a GGUF"), (b"GGUF\0\0\0\3" + bytes(32), "big endian")):
        with pytest.raises(ValueError, match=message):
            gguf_header.check(io.BytesIO(content), len(content), BLOCKS)
