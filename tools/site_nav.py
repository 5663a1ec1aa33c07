"""The menu of the website, made from docs/pages.md.

A section of the page (`## TITLE`) is a part of the menu. Below it, a line `- [NAME](PAGE)` is an entry, and a row of a
table, `| TITLE | [NAME](PAGE) · [NAME](PAGE) |`, is a group of entries. The pages in a folder that is named as a page
(`reference/rules/` for `reference/rules.md`) come below that page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

FRONT = "index.md"
"""The front page. The menu begins with it, and names it once."""
LIST = "pages.md"
"""The page with the list of all pages."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
_ROW = re.compile(r"\| *([^|]*[^| ]) *\| *(.*\[.*) *\|$")


def nav(text: str, pages: Collection[str], uri: Callable[[str], str]) -> list[Any]:
    """Returns the menu, in the form of `nav` in mkdocs.yml.

    Args:
        text: The text of docs/pages.md.
        pages: The paths of all pages in the site's sources.
        uri: Returns such a path for the target of a link of the text.
    """
    menu: list[Any] = [FRONT, LIST]
    entries: list[Any] = []
    for line in text.splitlines():
        row = _ROW.match(line)
        if line.startswith("## "):
            entries = []
            menu.append({line.removeprefix("## "): entries})
        elif row:
            entries.append({_capitalized(row[1]): _entries(row[2], pages, uri)})
        elif line.startswith("- ["):
            entries += _entries(line, pages, uri)
    return menu


def named(menu: Any) -> list[str]:
    """Returns the paths of all pages in a menu, in its order."""
    if isinstance(menu, str):
        return [menu]
    below = menu.values() if isinstance(menu, dict) else menu
    return [page for entry in below for page in named(entry)]


def _entries(line: str, pages: Collection[str], uri: Callable[[str], str]) -> list[Any]:
    found = [(name, uri(target)) for name, target in _LINK.findall(line)]
    return [{name: _with_folder(page, pages)} for name, page in found if page != FRONT]


def _with_folder(page: str, pages: Collection[str]) -> str | list[str]:
    folder = page.removesuffix(".md") + "/"
    below = sorted(other for other in pages if other.startswith(folder))
    return [page, *below] if below else page


def _capitalized(title: str) -> str:
    return title[:1].upper() + title[1:]
