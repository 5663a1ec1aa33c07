"""Texts of other people in Markdown: they are shown as they are, and make no heading, link, image or HTML."""

from __future__ import annotations

import html
import re

from etbuild.errors import printable

_MARKS = re.compile(r"[\\`*\[\]#~$!|]|(?<![^\W_])_|_(?![^\W_])")  # `_` inside a word is none


def line(words: str) -> str:
    """A text in a cell of a table, or inside a line."""
    shown = html.escape(printable(" ".join(words.split())), quote=False)
    return _MARKS.sub(r"\\\g<0>", shown)


def paragraph(words: str) -> str:
    """A text on a line of its own. A mark at its beginning makes no list and no rule."""
    return re.sub(r"^(\d*)(?=[-+=.)])", r"\1\\", line(words))


def code(words: str) -> str:
    """A name as code."""
    is_plain = words.isprintable() and words.strip() and not re.search(r"[`|\\<&]", words)
    return f"`{words}`" if is_plain else f"<code>{line(words)}</code>"
