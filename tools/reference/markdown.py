"""Writes small parts of Markdown in a form that GitHub and the documentation site both read."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Iterable, Sequence

from tools.markdown_links import links, slug

LONGEST_PAGE = 250
"""The largest number of lines of a page."""
_FENCE = "```"


def page(title: str, source: str, blocks: Iterable[str], snippets: str = "") -> str:
    """Returns a page with a title, a comment that names its source, and blocks separated by empty lines.

    Args:
        title: Its heading.
        source: The source it is made from.
        blocks: Its content.
        snippets: How its code is tested: the comment for a whole page that `tests/helpers/snippets.py` reads.

    Returns:
        The page. Its links are those of the blocks.
    """
    note = f"<!-- Generated from {source} by `make reference`. Do not edit this page. -->"
    tested = f"<!-- snippets {snippets} -->" if snippets else ""
    return "\n\n".join([f"# {title}", note, *(block for block in (tested, *blocks) if block)]) + "\n"


def link(text: str, heading: str | None = None, page: str = "") -> str:
    """Returns a link to a heading.

    Args:
        text: The text. It is the heading too unless another one is given.
        heading: The heading. An empty string: the link leads to the page.
        page: The page with the heading, relative to docs/reference. Empty: the same page.
    """
    anchor = slug(text if heading is None else heading)
    return f"[{text}]({page}{'#' if anchor else ''}{anchor})"


def placed(name: str, text: str) -> str:
    """Takes a page with links that are relative to docs/reference. Returns it with links that are relative to the page.

    Args:
        name: The page, relative to docs/reference: `rules/executorch_program.md`.
        text: The page. Docstrings and schemas link to other pages as `../backends.md`, wherever they are shown.
    """
    parts, end = [], 0
    for each in links(text):
        if each.path:
            path = "" if each.path == name else posixpath.relpath(each.path, posixpath.dirname(name) or ".")
            parts += [text[end : each.start], path, f"#{each.anchor}" if each.anchor else ""]
            end = each.start + len(each.target)
    return "".join([*parts, text[end:]])


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text, on one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split("\n\n", maxsplit=1)[0].split()))[0]


def length(blocks: Iterable[str]) -> int:
    """Returns the number of lines of blocks, with the empty lines between them."""
    return sum(block.count("\n") + 2 for block in blocks if block)


def cell(text: str) -> str:
    """Returns a text for a cell of a table: on one line, without a bare `|`."""
    return " ".join(text.split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table."""
    lines = [header, ["---"] * len(header), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fence(language: str, code: str) -> str:
    """Returns a block of code."""
    return f"{_FENCE}{language}\n{code.strip(chr(10))}\n{_FENCE}"


def signature(language: str, code: str, of: str) -> str:
    """Returns a block that shows how a name is used, for tests to compare: `MODULE:NAME` in Python, `FILE:NAME` in
    Starlark."""
    return f"<!-- snippet signature of: {of} -->\n{fence(language, code)}"


def fence_indented(text: str, language: str) -> str:
    """Replaces indented code blocks, which have no language, by fenced ones.

    Args:
        text: Markdown. Its code blocks are fenced, or are indented by four spaces and follow an empty line.
        language: The language of the indented blocks.
    """
    blocks: list[list[str]] = []  # paragraphs as lists of lines; code keeps its empty lines
    inside_fence = False
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.split("\n")
        continues = bool(blocks) and (
            inside_fence or (lines[0].startswith("    ") and blocks[-1][0].startswith("    "))
        )
        inside_fence ^= sum(line.lstrip().startswith(_FENCE) for line in lines) % 2 == 1
        if continues:
            blocks[-1] += ["", *lines]
        else:
            blocks.append(lines)
    parts = ["\n".join(lines) for lines in blocks]
    return "\n\n".join(fence(language, textwrap.dedent(part)) if part.startswith("    ") else part for part in parts)


_SECTION = re.compile(
    r"^(Args|Arguments|Attributes|Examples?|Raises|Returns|Yields):\n((?:(?: .*)?(?:\n|\Z))+)", re.MULTILINE
)


def docstring(text: str, language: str, skip: Sequence[str] = ()) -> str:
    """Returns a docstring in Google's style as Markdown: sections of arguments become lists.

    Args:
        text: The docstring, without indentation.
        language: The language of its examples.
        skip: Sections that are left out, such as `Attributes`.
    """
    parts = []
    end = 0
    for match in _SECTION.finditer(text):
        parts.append(fence_indented(text[end : match.start()], language))
        end = match.end()
        if match[1] not in skip:
            parts.append(_section(match[1], textwrap.dedent(match[2]).strip(), language))
    parts.append(fence_indented(text[end:], language))
    return "\n\n".join(part for part in parts if part.strip())


def _section(title: str, body: str, language: str) -> str:
    if title.startswith("Example"):
        return f"**{title}**\n\n{fence_indented(textwrap.indent(body, '    '), language)}"
    if title in ("Returns", "Yields"):
        said, *fields = re.split(r"\n(?=- )", body, maxsplit=1)
        return "\n\n".join([f"**{title}**: {' '.join(said.split())}", *fields])
    rows = [f"- `{name}`: {said}" for name, said in items(body).items()]
    return f"**{ {'Args': 'Arguments'}.get(title, title) }**\n\n" + "\n".join(rows)


def sections(text: str) -> dict[str, dict[str, str]]:
    """Returns the sections of a docstring whose entries have names, such as `Args`, by title."""
    found = _SECTION.finditer(text)
    return {match[1]: items(textwrap.dedent(match[2]).strip()) for match in found}


def items(body: str) -> dict[str, str]:
    """Returns the entries `name: text` of a section. Further lines of an entry are indented in the section."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?! )", body):
        name, _, said = entry.partition(":")
        entries[name.strip()] = " ".join(said.split())
    return entries
