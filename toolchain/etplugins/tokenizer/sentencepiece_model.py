"""Writes a model of SentencePiece: the message `ModelProto` in the format of Protocol Buffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

NORMAL, UNKNOWN, CONTROL, WORD, BYTE = 1, 2, 3, 4, 6
"""Kinds of pieces. A text may contain a `WORD` literally, such as the mark of a chat, and no `CONTROL`."""
_UNIGRAM = 1
_VARINT, _BYTES, _FLOAT = 0, 2, 5


def write(
    pieces: Sequence[tuple[str, float, int]],
    ends: Sequence[int],
    table: bytes,
    *,
    begins_with_space: bool,
    single_spaces: bool,
) -> bytes:
    """The bytes of a Unigram model.

    Args:
        pieces: The text, the score and the kind of each piece, in the order of their ids.
        ends: The tokens that begin and end a text. If there is one, it ends it.
        table: How characters are normalized, as SentencePiece compiles it; empty for none.
        begins_with_space: Whether a text gets a space at its beginning.
        single_spaces: Whether spaces become single ones, and those around a text are removed.
    """
    unknown = next(token for token, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN)
    begin, end = ends[0] if len(ends) > 1 else -1, ends[-1] if ends else -1
    names = [pieces[token][0] if token >= 0 else "" for token in (begin, end)]
    trainer = [
        *(_number(3, _UNIGRAM), _number(4, len(pieces)), _number(35, any(kind == BYTE for *_, kind in pieces))),
        *(_number(40, unknown), _number(41, begin), _number(42, end), _number(43, -1)),
        *(_text(45, pieces[unknown][0]), _text(46, names[0]), _text(47, names[1])),
    ]
    normalizer = [
        *(_text(1, "identity"), _bytes(2, table), _number(3, begins_with_space)),
        *(_number(4, single_spaces), _number(5, True)),
    ]
    parts = [_bytes(1, b"".join(_piece(*each))) for each in pieces]
    return b"".join([*parts, _bytes(2, b"".join(trainer)), _bytes(3, b"".join(normalizer))])


def _piece(text: str, score: float, kind: int) -> Iterable[bytes]:
    return _text(1, text), _tag(2, _FLOAT) + struct.pack("<f", score), _number(3, kind)


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode("utf-8"))


def _bytes(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    """A number; one below 0 has the 64 bits of its complement."""
    return _tag(field, _VARINT) + _varint(int(value) % (1 << 64))


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first. The highest bit says that another byte follows."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
