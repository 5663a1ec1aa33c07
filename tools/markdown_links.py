"""Finds the links and headings of Markdown files as GitHub does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_INLINE = re.compile(r"\]\(\s*<?([^\s()<>]+(?:\([^\s()]*\)[^\s()]*)?)>?(?:\s+[\"'(][^)]*)?\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
_ANCHOR = re.compile(r"<a\s[^>]*\b(?:id|name)=[\"']([^\"']+)[\"']")
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A link to a file or heading in the repository.

    Attributes:
        target: The text between the parentheses, with the anchor.
        start: The position of the target in the text of the file, in characters.
        line: Its line, from 1.
    """

    target: str
    start: int
    line: int

    @property
    def path(self) -> str:
        """The target without its anchor. Empty for a link within the page."""
        return self.target.partition("#")[0]

    @property
    def anchor(self) -> str:
        """The anchor, or an empty string."""
        return self.target.partition("#")[2]


def slug(heading: str) -> str:
    """Returns the anchor that GitHub gives to a heading if no earlier heading of the page has the same anchor."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def links(text: str) -> Iterator[Link]:
    """Yields the links of a page to places in the repository. Text in code is ignored."""
    for number, (start, line) in enumerate(_prose(text), 1):
        hidden = _CODE.sub(lambda match: "`" * len(match[0]), line)
        for match in [*_INLINE.finditer(hidden), *_DEFINITION.finditer(hidden)]:
            if not _EXTERNAL.match(match[1]):
                yield Link(match[1], start + match.start(1), number)


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page."""
    found: set[str] = set()
    count: dict[str, int] = {}
    for _, line in _prose(text):
        found.update(_ANCHOR.findall(line))
        heading = _HEADING.match(line)
        if heading:
            name = slug(heading[1])
            found.add(f"{name}-{count[name]}" if name in count else name)
            count[name] = count.get(name, 0) + 1
    return found


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields each line with its position in the text. The lines of fenced code blocks are empty."""
    fence = ""
    start = 0
    for line in text.splitlines(keepends=True):
        match = _FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            yield start, ""
        elif match:
            fence = match[1]
            yield start, ""
        else:
            yield start, line
        start += len(line)
