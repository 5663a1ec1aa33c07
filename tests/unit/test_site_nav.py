"""docs/pages.md names each page once, and the menu of the website is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.site_nav import LIST, named, nav

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
KINDS = ["Tutorials", "How-to", "Explanation", "Reference", "Project"]


def menu() -> list[object]:
    return nav((DOCS / LIST).read_text("utf-8"), PAGES, lambda target: target)


def test_each_page_is_in_the_list() -> None:
    missing = sorted(PAGES - set(named(menu())))
    assert not missing, "add them to docs/pages.md, in the section of their kind"


WRITTEN_BY_TOOLS = ("families.md", "pages.md", "reference")
"""Pages of tables: the menu says whom they are for."""


def test_each_page_begins_with_whom_it_is_for() -> None:
    first = {}
    for page in PAGES:
        if not page.startswith(WRITTEN_BY_TOOLS):
            text = re.sub(r"<!--.*?-->", "", (DOCS / page).read_text("utf-8"), flags=re.DOTALL)
            _, first[page], *_ = filter(None, map(str.strip, text.split("\n\n")))
    assert len(first) > 60
    assert {page: text for page, text in first.items() if not re.match(r"For [^\n]{8,}", text)} == {}


def test_no_page_is_there_twice() -> None:
    pages = named(menu())
    assert sorted(set(pages)) == sorted(pages)


def test_the_sections_are_the_kinds_of_pages() -> None:
    assert [title for entry in menu() if isinstance(entry, dict) for title in entry] == KINDS


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("- [Words](words.md)", [{"Words": "words.md"}]),
        ("| do it | [A](a.md) · [B](b.md) |", [{"Do it": [{"A": "a.md"}, {"B": "b.md"}]}]),
        ("| task | page |\n|---|---|", []),
        ("Text with a [link](a.md).", []),
        ("- [Rules](rules.md)", [{"Rules": ["rules.md", "rules/one.md", "rules/two.md"]}]),
        ("- [Read me](index.md)", []),
    ],
)
def test_the_menu_of_a_section(text: str, entries: list[object]) -> None:
    pages = {"rules.md", "rules/two.md", "rules/one.md", "rules_more.md"}
    assert nav(f"# All\n\n## How-to\n\n{text}\n", pages, lambda target: target)[2:] == [{"How-to": entries}]
