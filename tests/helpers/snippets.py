"""The blocks of code in the project's Markdown pages. A test checks each of them, or a comment before it says why not.

A comment that readers do not see stands on the line before a block, perhaps with an empty line between them:

    <!-- snippet not run: it needs a registry -->

| comment | what it says |
| --- | --- |
| `with: TEXT` | what a reader has already: keys of the manifest, statements, targets or commands, which come first |
| `at: PATH` | the place of a part of a manifest, such as `defaults.quantize`; the default is the top of the file |
| `file: NAME` | the block is this file of the page's project, in which the commands of the page run |
| `added to: NAME` | the block comes to the end of this file, before the commands after it run |
| `output of: COMMAND` | the command prints the block; a line `...` stands for any lines, `...` in a line for any text |
| `part of: COMMAND` | the lines of the block are among those that the command prints, in this order |
| `parsed: REASON` | commands are checked, but do not run; Python is compiled, and what it imports is imported |
| `run by: TEST` | this file of tests reads the page |
| `signature of: NAME` | a generated page has it: `MODULE:NAME` in Python, `FILE:NAME` in Starlark |
| `not run: REASON` | nothing of it is checked |

`<!-- snippets LANGUAGE parsed: REASON -->` says so for each block of the page in this language that has no such
comment. The language of an indented block is `sh` if it begins with a command, and `text` otherwise. A row of a table
is a block too if its first cell is `WORKSPACE`, `MODULE.bazel` or pip, and its second one is code.
"""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    *(
        "bazel",
        "cd",
        "cmake",
        "cp",
        "echo",
        "etbuild",
        "git",
        "make",
        "oras",
        "pip",
        "printf",
        "sha256sum",
        "skopeo",
        "uv",
    ),
    *("python", "python3", "python3.11", ".venv/bin/python"),
)
"""The programs that commands of pages may call."""
VERDICTS = ("output of", "part of", "parsed", "run by", "signature of", "not run")
"""The comments that say how a block is checked. A block has at most one."""
NOTES = (*VERDICTS, "with", "at", "file", "added to")
_NEVER_RUN = ("cmake", "text")
LANGUAGES = ("cmake", "cpp", "ini", "json", "python", "sh", "starlark", "text", "yaml")

_NOTE = re.compile(r"<!-- snippet ([a-z ]+):\s(.*?) -->", re.DOTALL)
_OF_PAGE = re.compile(r"^<!-- snippets (\w+) ([a-z ]+): (.*) -->$", re.MULTILINE)
_ITEM = re.compile(r"^( *(?:[-*]|\d+\.) +)\S")
_ROW = re.compile(r"\| (?:`(?:MODULE\.bazel|WORKSPACE)`|(pip)) \| `(.*)` \|$")
_NOT_CHECKED = ("changes/", "CHANGELOG.md", ".github/", "tools/reliability_template.md")


@dataclass(frozen=True)
class Snippet:
    """A block of code.

    Attributes:
        page: The path of the page in the repository.
        line: The line of its first line, from 1.
        language: The language.
        text: The code, without the indentation of the block.
        notes: What the comments before it say, by their kind.
        section: The headings above it, from the outermost.
    """

    page: str
    line: int
    language: str
    text: str
    notes: Mapping[str, str] = field(default_factory=dict)
    section: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The page and the line, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def verdict(self) -> str:
        """The comment that says how it is checked; `run` if there is none."""
        return next((kind for kind in VERDICTS if kind in self.notes), "run")

    @property
    def before(self) -> str:
        """What the reader has already."""
        return self.notes.get("with", "")


def pages() -> list[str]:
    """Returns the pages, as paths in the repository."""
    places = ("*.md", "docs/**/*.md", "examples/**/*.md", ".bcr/*.md")
    found = [path.relative_to(ROOT).as_posix() for place in places for path in ROOT.glob(place)]
    return sorted(page for page in found if not page.startswith(_NOT_CHECKED))


@functools.cache
def snippets() -> tuple[Snippet, ...]:
    """Returns the blocks of all pages."""
    return tuple(each for page in pages() for each in blocks(page, (ROOT / page).read_text("utf-8")))


def blocks(page: str, text: str) -> Iterator[Snippet]:
    """Yields the blocks of a page."""
    of_page = {language: (kind, said) for language, kind, said in _OF_PAGE.findall(text)}
    lines = text.split("\n")
    headings: list[str] = []
    content = 0  # the column of the text of the list's item around the line
    number = 0
    while number < len(lines):
        line = lines[number]
        indent = len(line) - len(line.lstrip())
        start = number
        if fence := re.match(r" *(```+|~~~+)(\w*)", line):
            number = next(n for n in range(start + 1, len(lines)) if lines[n].strip() == fence[1]) + 1
            code, language, first = lines[start + 1 : number - 1], fence[2] or "text", start + 2
        elif line.strip() and indent >= content + 4 and not lines[number - 1].strip():
            while number < len(lines) and (not lines[number].strip() or lines[number].startswith(" " * (content + 4))):
                number += 1
            code, language, first = lines[start:number], "", start + 1
        else:
            number += 1
            if heading := re.match(r"(#+) +(.*)", line):
                headings[len(heading[1]) - 1 :] = [heading[2].strip("`")]
            if row := _ROW.match(line):
                language, notes = ("sh", {"parsed": "it needs a package index"}) if row[1] else ("starlark", {})
                yield Snippet(page, start + 1, language, row[2], notes, tuple(headings))
            if line.strip():
                item = _ITEM.match(line)
                content = len(item[1]) if item else content if indent >= content > 0 else 0
            continue
        dedented = textwrap.dedent("\n".join(code)).strip("\n")
        language = language or ("sh" if is_command(dedented.split("\n")[0]) else "text")
        notes = _notes("\n".join(lines[:start]))
        if language in of_page and not set(VERDICTS) & notes.keys():
            notes = {**notes, of_page[language][0]: of_page[language][1]}
        yield Snippet(page, first, language, dedented, notes, tuple(headings))


def _notes(before: str) -> dict[str, str]:
    """Reads the comments that end a text. `wrong` has one that cannot be read."""
    notes = {}
    while (text := before.rstrip()).endswith("-->"):
        comment = text[text.rindex("<!--") :]
        if not comment.startswith("<!-- snippet "):
            break
        match = _NOTE.fullmatch(comment)
        if match is None or match[1] not in NOTES or not match[2].strip():
            notes["wrong"] = comment
        else:
            notes[match[1]] = textwrap.dedent(match[2]).strip()
        before = text[: -len(comment)]
    return notes


def mistakes(snippet: Snippet) -> Iterator[str]:
    """Yields the mistakes in the comments of a block, with its place and what to do."""
    notes, language = snippet.notes, snippet.language
    given = [kind for kind in VERDICTS if kind in notes]
    if "wrong" in notes:
        yield f"{snippet.place}: write one of {', '.join(NOTES)}, and a text after `: `, in {notes['wrong']}"
    elif language not in LANGUAGES:
        yield f"{snippet.place}: nothing checks `{language}`: write one of {', '.join(LANGUAGES)}, or add a check"
    elif len(given) > 1:
        yield f"{snippet.place}: two comments say how it is checked: keep `{given[0]}` or `{given[1]}`"
    elif not given and "file" not in notes and language in _NEVER_RUN:
        yield (
            f"{snippet.place}: no test checks this block (`{language}`): write before it "
            "`<!-- snippet output of: COMMAND -->` if a command prints it, `<!-- snippet run by: TEST -->` if a test "
            "reads it, or `<!-- snippet not run: REASON -->`"
        )
    for kind in ("parsed", "not run"):
        if kind in notes and len(notes[kind].split()) < 3:
            yield f"{snippet.place}: `{notes[kind]}` is too short for a reason: say why it is not run"
    test = notes.get("run by")
    if test and not ((ROOT / test).is_file() and _reads((ROOT / test).read_text("utf-8"), snippet.page)):
        yield f"{snippet.place}: {test} does not exist, or does not read {snippet.page}"


def _reads(test: str, page: str) -> bool:
    """Whether a test names a page, or all pages of its folder."""
    return page in test or f"{page.rpartition('/')[0]}/*.md" in test


def starlark_file(snippet: Snippet) -> str:
    """Returns which kind of file a block of Starlark is a part of."""
    text = f"{snippet.before}\n{snippet.text}"
    if "contrib/buck2:" in text:
        return "BUCK"
    if re.search(r"^(bazel_dep|executorch\.\w+|module)\(|= use_(extension|repo_rule)\(", text, re.MULTILINE):
        return "MODULE.bazel"
    if "rules:repositories.bzl" in text or re.match(r"\s*(executorch|local)_repositor", text):
        return "WORKSPACE"
    return "defs.bzl" if re.search(r"^def |= rule\(", text, re.MULTILINE) else "BUILD"


def loads(snippet: Snippet) -> bool:
    """Returns whether a block of Starlark loads what it needs."""
    if re.search(r"^executorch\.", snippet.text, re.MULTILINE):
        return "executorch = use_extension(" in snippet.text
    return bool(re.search(r"\bload\(|use_extension\(|use_repo_rule\(", snippet.text))


def continued(snippet: Snippet) -> str:
    """Returns a block of Starlark after what it continues. If it loads nothing, that is the last block before it, in
    its section or in one around it, that loads something into the same file."""
    before = [
        each
        for each in snippets()
        if each.page == snippet.page
        and each.line < snippet.line
        and snippet.section[: len(each.section)] == each.section
        and (each.language, each.verdict) == ("starlark", "run")
        and starlark_file(each) == starlark_file(snippet)
        and loads(each)
    ]
    own = f"{snippet.before}\n{snippet.text}\n".lstrip("\n")
    return own if loads(snippet) or not before else f"{before[-1].text}\n{own}"


def is_command(line: str) -> bool:
    """Returns whether a line begins with a program that pages may call, or with a prompt."""
    first = next((word for word in line.split() if not re.match(r"[A-Z_0-9]+=", word)), "")
    return first in ("$", "#!/bin/sh", *PROGRAMS)


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each command of a block, without the lines that a command has printed: those after
    `$ COMMAND`, and paragraphs that begin with no command."""
    if "$ " in (line[:2] for line in text.split("\n")):
        text = "\n".join(line[2:] for line in text.split("\n") if line.startswith("$ "))
    for paragraph in re.split(r"\n{2,}", text):
        if is_command(paragraph):
            for line in paragraph.replace("\\\n", " ").split("\n"):
                yield from _of_line(line)


def _of_line(line: str) -> Iterator[list[str]]:
    inner = re.compile(r"\$\(([^()]*)\)")
    while found := inner.search(line):  # the innermost first
        yield from _of_line(found[1])
        line = line[: found.start()] + "RESULT" + line[found.end() :]
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    reader.whitespace_split = True
    words: list[str] = []
    parts = iter([*reader, ";"])
    for word in parts:
        if set(word) <= set("<>"):
            next(parts)  # the file
        elif set(word) <= set("|&;"):
            while words and re.match(r"[A-Z_0-9]+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def pattern(text: str, whole: bool) -> re.Pattern[str]:
    """Returns what the output of a command must match. A line `...` stands for any lines, other `...` for any text, and
    a key for any key: it contains the digest of the driver. Columns may be wider, since a row that is left out decides.

    Args:
        text: What a page shows.
        whole: Whether that is everything. Otherwise, other lines may be before, between and after those that are shown.
    """

    def of(line: str) -> str:
        if line.strip() == "...":
            return r"(?:.*\n)*?"
        text = re.escape(line.rstrip()).replace(r"\.\.\.", ".*")
        text = re.sub(r"(?:\\ ){2,}", " {2,}", text)
        return re.sub(r"\b[0-9a-f]{64}\b", "[0-9a-f]{64}", text) + r"[ \t]*(?:\n|\Z)"

    lines = [of(line) for line in text.split("\n")]
    return re.compile("".join([r"\A", *lines, r"\s*\Z"]) if whole else r"(?:.*\n)*?".join(["^", *lines]), re.MULTILINE)
