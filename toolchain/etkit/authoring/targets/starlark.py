"""Edits a BUILD file. An edit changes no other byte: comments, line ends and the order stay.

Python's own parser reads the file: Starlark has no syntax that Python lacks, and Python's tree says where each node
begins and ends. An edit replaces such a range, and then the text is parsed again.
"""

from __future__ import annotations

import ast
import json
import re
import tokenize
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from etbuild.errors import InputError

_LINE_END = re.compile(r"\r\n|\r|\n")
_MARK = "\ufeff"  # some editors write it at the beginning of files
INDENT = "    "
Node = ast.expr | ast.keyword


class Starlark:
    """The text of a file and its syntax tree.

    Attributes:
        text: The text, which edits change.
        tree: Its syntax tree.
        begin: Where the text begins: after a byte order mark.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        """Parses a file.

        Raises:
            InputError: It is not Starlark.
        """
        self._path = path
        try:
            self.text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError.of(f"{path}: not UTF-8: byte {error.start + 1}") from None
        self._newline = "\r\n" if "\r\n" in self.text else "\n"
        self._parse()

    def _parse(self) -> None:
        body = self.text.removeprefix(_MARK)
        self.begin = len(self.text) - len(body)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as an unknown escape in a string
                self.tree = ast.parse(body)
        except SyntaxError as error:
            raise InputError.of(f"{self._path}:{error.lineno or 1}:{error.offset or 1}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InputError.of(f"{self._path}: cannot be parsed: {error}") from None
        self._lines = [self.begin, *(match.end() + self.begin for match in _LINE_END.finditer(body))]
        self._known_tokens: list[tuple[int, int, str]] | None = None

    def _tokens(self) -> list[tuple[int, int, str]]:
        """Tokens: where each begins and ends, and its text. Comments and line ends are left out."""
        if self._known_tokens is None:
            each = iter(
                [self.text[start:end] for start, end in zip(self._lines, [*self._lines[1:], None], strict=True)]
            )
            found = tokenize.generate_tokens(lambda: next(each, ""))
            self._known_tokens = [
                (
                    self._lines[token.start[0] - 1] + token.start[1],
                    self._lines[token.end[0] - 1] + token.end[1],
                    token.string,
                )
                for token in found
                if token.type in (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
            ]
        return self._known_tokens

    def _offset(self, line: int, column: int) -> int:
        """The position of a line and of a column, which the parser counts in bytes."""
        start = self._lines[line - 1]
        end = self._lines[line] if line < len(self._lines) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode())

    def start(self, node: ast.stmt | Node) -> int:
        """Where a node begins."""
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | Node) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def line(self, node: ast.stmt | Node) -> int:
        """The number of the line where a node begins."""
        return node.lineno

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces a range. Line ends of the new text become those of the file."""
        self.text = self.text[:start] + text.replace("\n", self._newline) + self.text[end:]
        self._parse()

    # --- lists, dictionaries and calls: items between brackets

    def insert(self, items: Sequence[Node], index: int, inside: ast.expr, text: str) -> None:
        """Inserts an item before the item with this index, in the way in which the items are written.

        Args:
            items: The items.
            index: A number from 0 to the number of items.
            inside: The node that ends with the closing bracket.
            text: The item, without a comma.
        """
        if not items:
            end = self.end(inside) - 1
            indent = self.indent(end)
            if self._alone_before(end):  # the bracket stays on a line of its own
                self.replace(end, end, INDENT + text.replace("\n", f"\n{indent}{INDENT}") + f",\n{indent}")
            else:
                self.replace(end, end, text.replace("\n", f"\n{indent}"))
        elif index == 0:
            start = self._range(items[0], inside)[0]
            between = f",\n{self.indent(start)}" if self._alone_before(start) else ", "
            self.replace(start, start, text.replace("\n", f"\n{self.indent(start)}") + between)
        else:
            self._insert_after(items[index - 1], inside, text)

    def _insert_after(self, item: Node, inside: ast.expr, text: str) -> None:
        start, end = self._range(item, inside)
        indent = self.indent(start)
        text = text.replace("\n", f"\n{indent}")
        comma = self._comma(end)
        rest = self.text[comma or end : self.line_end(comma or end)]
        if self._alone_before(start) and re.fullmatch(r"[ \t]*(#.*)?", rest):
            position = self.line_end(comma or end)  # a comment after the item stays with it
            if comma is None:
                self.replace(end, position, f",{self.text[end:position]}\n{indent}{text}")
            else:
                self.replace(position, position, f"\n{indent}{text},")
        else:
            self.replace(end, end, (f",\n{indent}" if self._alone_before(start) else ", ") + text)

    def remove(self, items: Sequence[Node], index: int, inside: ast.expr) -> None:
        """Removes an item, with the comment behind it if the item has lines of its own. Arguments: as `insert`."""
        start, end = self._range(items[index], inside)
        comma = self._comma(end)
        after = comma or end
        line_end = self.line_end(after)
        if self._alone_before(start) and re.fullmatch(r"[ \t]*(#.*)?", self.text[after:line_end]):
            newline = _LINE_END.match(self.text, line_end)
            self.replace(self.line_start(start), newline.end() if newline else line_end, "")
        elif index + 1 < len(items):
            following = self._range(items[index + 1], inside)[0]
            self.replace(start, after if "#" in self.text[after:following] else following, "")
        elif index and "#" not in self.text[self._range(items[index - 1], inside)[1] : start]:
            self.replace(self._range(items[index - 1], inside)[1], end, "")
        else:
            self.replace(start, after, "")

    def _range(self, item: Node, inside: ast.expr) -> tuple[int, int]:
        """Where an item begins and ends, with its parentheses. For the key of a dictionary, this is the whole entry."""
        if isinstance(inside, ast.Call):  # the parentheses of the call do not belong to an item
            return self.start(item), self.end(item)
        return self._wrapped(item)[0], self._wrapped(getattr(item, "entry_value", item))[1]

    def _wrapped(self, node: Node) -> tuple[int, int]:
        """Where a node begins and ends, with the parentheses around it."""
        tokens = self._tokens()
        first = next(number for number, token in enumerate(tokens) if token[0] == self.start(node))
        last = next(number for number, token in enumerate(tokens) if token[1] == self.end(node))
        while tokens[first - 1][2] == "(" and tokens[last + 1][2] == ")":
            first, last = first - 1, last + 1
        return tokens[first][0], tokens[last][1]

    def _comma(self, position: int) -> int | None:
        """The position after the next comma, if only spaces and comments come before it; otherwise None."""
        match = re.compile(r"(?:\s|#[^\r\n]*(?=[\r\n]))*,").match(self.text, position)
        return match.end() if match else None

    def line_start(self, position: int) -> int:
        """Where the line of a position begins."""
        return max(start for start in self._lines if start <= position)

    def line_end(self, position: int) -> int:
        """Where the line of a position ends."""
        match = _LINE_END.search(self.text, position)
        return match.start() if match else len(self.text)

    def _alone_before(self, position: int) -> bool:
        """Whether only spaces precede a position in its line."""
        return not self.text[self.line_start(position) : position].strip()

    def indent(self, position: int) -> str:
        """The spaces at the beginning of a position's line."""
        match = re.compile(r"[ \t]*").match(self.text, self.line_start(position))
        assert match
        return match.group()

    def source(self, node: ast.stmt | Node) -> str:
        """The text of a node."""
        return self.text[self.start(node) : self.end(node)]

    # --- what is in the file

    def loads(self) -> Iterator[tuple[ast.Call, str, dict[str, str]]]:
        """Yields the load statements: the call, the label, and the loaded names by their names in this file."""
        for statement in self.tree.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if (
                isinstance(call, ast.Call)
                and _name(call.func) == "load"
                and call.args
                and text(call.args[0]) is not None
            ):
                symbols = {each: each for each in map(text, call.args[1:]) if each is not None}
                symbols.update({each.arg: text(each.value) or "" for each in call.keywords if each.arg})
                yield call, text(call.args[0]) or "", symbols

    def target_names(self) -> set[str]:
        """The names of targets in the file that are written as plain strings."""
        named = (argument(node, "name") for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return {value for each in named if each is not None and (value := text(each.value)) is not None}

    def calls(self) -> list[ast.Call]:
        """All calls with the argument `manifest`, wherever they are, in the order of the file."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and argument(node, "manifest")]
        return sorted(found, key=self.start)


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def called(call: ast.Call) -> str | None:
    """The name that a call uses for its function."""
    return _name(call.func)


def argument(call: ast.Call, name: str) -> ast.keyword | None:
    """The argument of a call with this name."""
    return next((each for each in call.keywords if each.arg == name), None)


def text(node: ast.expr | None) -> str | None:
    """The value of a node that is a string."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def texts(node: ast.expr | None) -> list[str] | None:
    """The values of a list of strings; None if the node is something else, such as a `select()`."""
    if not isinstance(node, ast.List):
        return None
    values = [text(each) for each in node.elts]
    return None if None in values else [each for each in values if each is not None]


def entries(node: ast.expr) -> dict[str, ast.expr] | None:
    """The values of a dictionary whose keys are strings; None if the node is something else."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [text(each) for each in node.keys]
    if None in keys:
        return None
    return {key: value for key, value in zip(keys, node.values, strict=True) if key is not None}


def items(node: ast.expr) -> list[ast.expr]:
    """The items of a list, or the keys of a dictionary, each for its entry."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            key.entry_value = value  # type: ignore[union-attr]
        return [key for key in node.keys if key is not None]
    assert isinstance(node, ast.List)
    return node.elts


def written(value: object) -> str:
    """A value as buildifier writes it: a list or a dictionary with two or more items has a line for each.

    Args:
        value: None, a string, a list, or a dictionary.
    """
    if value is None:
        return "None"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return lines([f"{written(key)}: {written(item)}" for key, item in value.items()], "{", "}")
    assert isinstance(value, list)
    return lines([written(item) for item in value], "[", "]")


def lines(each: list[str], opening: str, closing: str) -> str:
    """Items between brackets: in one line if there is one item, else with a line for each."""
    if len(each) < 2:
        return opening + "".join(each) + closing
    indented = [f"{INDENT}{item},".replace("\n", f"\n{INDENT}") for item in each]
    return "\n".join([opening, *indented, closing])


def rule_call(rule: str, attributes: Mapping[str, object]) -> str:
    """A target as buildifier writes it, without the attributes that are empty, unless that means something."""
    shown = {key: value for key, value in attributes.items() if value or key == "plugins"}
    rows = [f"{INDENT}{key} = {written(value)},".replace("\n", f"\n{INDENT}") for key, value in shown.items()]
    return "\n".join([f"{rule}(", *rows, ")", ""])
