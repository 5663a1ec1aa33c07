"""Parts of plots as SVG. Equal data gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from etbuild.errors import printable

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


_OF_PROGRAM = "<!-- What the program {} found. -->"
_HEAD = 1024  # bytes of an image, which begin with the comment


def document(width: int, height: int, body: Iterable[str], program: str = "") -> str:
    """An image with a white background. `program` is the SHA-256 of the program that found what it shows."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">'
    )
    comment = [_OF_PROGRAM.format(program)] if program else []
    return "\n".join([head, *comment, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>"]) + "\n"


def shows(content: bytes, program: str) -> bool:
    """Whether an image shows what a program found."""
    return _OF_PROGRAM.format(program).encode() in content[:_HEAD]


def text(x: float, y: float, content: str, more: str = "") -> str:
    """A text. Its content is escaped, since it may come from an untrusted file."""
    return f'<text x="{x}" y="{y}" {more}>{escape(printable(content))}</text>'
