"""Each message in docs/troubleshooting.md is one that a source of the driver or of the rules has."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
ROW = re.compile(r"^\| (`+)(.*?)\1 \|", re.MULTILINE)
MESSAGES = [text.strip() for _, text in ROW.findall(PAGE)]
HOLE = "\0"


def literal(node: ast.AST) -> str | None:
    """The text of an expression of strings, with `HOLE` for each value in it. None for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{\w*\}", HOLE, node.value)  # of `format`, in Starlark
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or HOLE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (literal(node.left), literal(node.right))
        return "".join(side or HOLE for side in sides) if any(sides) else None
    return None


def texts(node: ast.AST) -> Iterator[str]:
    """The longest texts in a source."""
    text = literal(node)
    if text is not None:
        yield text
        return
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


@functools.cache
def known() -> frozenset[str]:
    files = [*(ROOT / "toolchain").rglob("*.py"), *(ROOT / "rules").rglob("*.bzl"), *(ROOT / "toolchain").glob("*.bzl")]
    return frozenset(text for file in files for text in texts(ast.parse(file.read_text("utf-8"))))


def fits(message: str, text: str) -> bool:
    """Whether a text has a message: where the message has `...`, the text has a value, and a few words at most."""
    gap = f".{{0,40}}?{HOLE}.{{0,40}}?"
    return re.search(r"(?:^|\W)" + gap.join(map(re.escape, message.split("..."))), text, re.DOTALL) is not None


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_a_source(message: str) -> None:
    assert any(fits(message, text) for text in known()), f"no source says: {message}"


def test_the_page_has_messages() -> None:
    assert len(MESSAGES) >= 25


@pytest.mark.parametrize(
    ("message", "text", "expected"),
    [
        ("unknown key `...`", f"unknown key `{HOLE}`", True),
        ("unknown key `...`", f"unknown word `{HOLE}`", False),
        ("unknown key `...`", "unknown key `name`", False),
        ("known", "unknown key", False),
    ],
)
def test_what_fits(message: str, text: str, expected: bool) -> None:
    assert fits(message, text) is expected


def test_texts_of_a_source() -> None:
    source = 'f("a {} " + "b".format(1))\ng(f"c {x} d")\n'
    assert list(texts(ast.parse(source))) == [f"a {HOLE} {HOLE}", f"c {HOLE} d"]
