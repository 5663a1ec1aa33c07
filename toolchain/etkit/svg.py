"""Parts of plots as SVG. Equal data gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from etbuild.errors import printable

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


def document(width: int, height: int, body: Iterable[str]) -> str:
    """An image with a white background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="12">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, more: str = "") -> str:
    """A text. Its content is escaped, since it may come from an untrusted file."""
    return f'<text x="{x}" y="{y}" {more}>{escape(printable(content))}</text>'
