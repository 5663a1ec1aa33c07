"""The check of links in Markdown files that `make lint` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_links import broken_links
from tools.markdown_links import anchors, links

PAGES = {
    "README.md": "# A title\n\n## One `code` [link](docs/a.md)\n\n## Twice\n\n## Twice\n",
    "docs/a.md": '# A\n\n<a id="here"></a>\n',
}


def check(tmp_path: Path, text: str) -> list[str]:
    files = {**PAGES, "docs/page.md": text}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return list(broken_links(tmp_path, files))


@pytest.mark.parametrize(
    "target",
    ["a.md", "a.md#here", "../README.md#one-code-link", "../README.md#twice-1", "../docs", "#top", "https://a.test/b"],
)
def test_a_good_link(target: str, tmp_path: Path) -> None:
    assert check(tmp_path, f"# Top\n\nSee [it]({target}).\n") == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("b.md", "there is no such file"),
        ("../../README.md", "there is no such file"),
        ("/README.md", "write the path relative to this file"),
        ("a.md#there", "docs/a.md has no such heading"),
        ("../README.md#twice-2", "README.md has no such heading"),
        ("#bottom", "docs/page.md has no such heading"),
    ],
)
def test_a_broken_link_is_told_with_its_line(target: str, message: str, tmp_path: Path) -> None:
    expected = [f"docs/page.md:3: {target}: {message}"]
    assert check(tmp_path, f'# Top\n\nSee [`it`]({target} "title").\n') == expected
    assert check(tmp_path, f"# Top\n\n[it]: {target}\n") == expected
    assert check(tmp_path, f"# Top\n\n![it]({target})\n") == expected


def test_code_has_no_links_and_no_headings() -> None:
    text = "`[a](b)` ``[`c`](d)`` [e](f)\n\n```sh\n# a comment\n[g](h)\n```\n\n# Title\n"
    assert [link.target for link in links(text)] == ["f"]
    assert anchors(text) == {"title"}


def test_a_link_knows_its_place() -> None:
    text = "# Title\n\nA [link](x.md#y).\n"
    [link] = links(text)
    assert text[link.start :].startswith("x.md#y)")
    assert (link.path, link.anchor, link.line) == ("x.md", "y", 3)
