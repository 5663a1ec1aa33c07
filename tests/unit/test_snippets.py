"""The blocks of code in the project's pages. `tests/helpers/snippets.py` says what is checked, and what comments say.

`tests/integration/test_snippets.py` runs commands and Python, `tests/bazel/test_snippets.py` loads Starlark, and
`tests/buck2/test_snippets.py` that of Buck2.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import functools
import importlib
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomllib
import yaml

from etbuild import json_schema
from etbuild.cli import main
from tests.helpers.snippets import ROOT, Snippet, blocks, commands, mistakes, pattern, snippets
from tools.reference.starlark import Loader

MANIFEST = {
    "schema": "executorch-model/v1",
    "name": "net",
    "model": {"factory": "model:create"},
    "methods": {"forward": {"example_inputs": [{"shape": [1, 8]}]}},
}
"""What a part of a manifest is put into, unless it has these keys itself."""


def of(language: str, *verdicts: str) -> list[Any]:
    """The blocks in a language that are checked in one of these ways, as parameters of a test."""
    chosen = [each for each in snippets() if each.language == language and each.verdict in verdicts]
    return [pytest.param(each, id=each.place) for each in chosen]


def test_each_block_is_checked_or_says_why_not() -> None:
    problems = [problem for each in snippets() for problem in mistakes(each)]
    assert not problems, "\n".join(problems)


def found_in(text: str) -> list[Snippet]:
    return list(blocks("README.md", text))


def test_blocks_are_fenced_or_indented_or_rows_of_tables() -> None:
    text = (
        "# Title\n\n```yaml\na: 1\n```\n\n1. An item,\n\n    and its text:\n\n    ```sh\n    ls\n    ```\n\nText:\n\n"
        "    etbuild targets\n\n    a file\n\n## Part\n\n| `WORKSPACE` | `f()` |\n"
    )
    assert [(each.line, each.language, each.text, each.section[1:]) for each in found_in(text)] == [
        (4, "yaml", "a: 1", ()),
        (12, "sh", "ls", ()),
        (17, "sh", "etbuild targets\n\na file", ()),
        (23, "starlark", "f()", ("Part",)),
    ]


def test_comments_before_a_block_are_notes() -> None:
    text = "<!-- snippets sh parsed: a b c -->\n\n<!-- snippet with:\n  a: 1\n  b: 2 -->\n<!-- snippet at: c -->\n"
    text += "```yaml\nd: 1\n```\n"
    first, second = found_in(f"{text}\n```sh\nmake\n```\n")
    assert (first.notes, first.verdict) == ({"with": "a: 1\nb: 2", "at": "c"}, "run")
    assert (second.notes, second.verdict) == ({"parsed": "a b c"}, "parsed")


@pytest.mark.parametrize(
    ("comment", "language", "message"),
    [
        ("", "text", "no test checks this block"),
        ("", "perl", "nothing checks `perl`"),
        ("<!-- snippet skipped: a b c -->", "sh", "write one of"),
        ("<!-- snippet not run: slow -->", "sh", "too short for a reason"),
        ("<!-- snippet not run: a b c -->\n<!-- snippet parsed: a b c -->", "sh", "two comments"),
        ("<!-- snippet run by: tests/unit/test_links.py.old -->", "sh", "does not exist, or does not read README.md"),
    ],
)
def test_a_block_without_a_check_is_told_with_its_line(comment: str, language: str, message: str) -> None:
    [snippet] = found_in(f"{comment}\n```{language}\nx\n```\n")
    [problem] = mistakes(snippet)
    assert problem.startswith(f"README.md:{snippet.line}: ")
    assert message in problem


def test_commands_of_a_block() -> None:
    text = 'A=1 etbuild a "$(git b -c)" | make d > file && pip e  # f\ncp \\\n  g\n\nprinted\n'
    assert list(commands(text)) == [
        ["git", "b", "-c"],
        ["etbuild", "a", "RESULT"],
        ["make", "d"],
        ["pip", "e"],
        ["cp", "g"],
    ]
    assert list(commands("$ etbuild a\nprinted\n$ make b\n")) == [["etbuild", "a"], ["make", "b"]]


@pytest.mark.parametrize(
    ("shown", "printed", "whole", "matches"),
    [
        ("a ... c\n...\nd", "a b c\nx\ny\nd\n", True, True),
        ("a", "a\nb\n", True, False),
        ("a\nc", "a\nb\nc\nd\n", False, True),
        ("c\na", "a\nb\nc\nd\n", False, False),
        (f"key {'a' * 64}", f"key {'b' * 64}\n", True, True),
        (f"digest {'a' * 16}", f"digest {'b' * 16}\n", True, False),
    ],
)
def test_what_is_printed(shown: str, printed: str, whole: bool, matches: bool) -> None:
    assert bool(pattern(shown, whole).search(printed)) is matches


def whole_manifest(snippet: Snippet) -> dict[str, Any]:
    """A part of a manifest, with what surrounds it. A key of the surroundings can be `null`: then it is absent."""
    part = yaml.safe_load(snippet.text)
    for key in reversed(snippet.notes["at"].split(".") if "at" in snippet.notes else []):
        part = {key: part}
    merged = {**MANIFEST, **combined(yaml.safe_load(snippet.before) if snippet.before else {}, part)}
    return {key: value for key, value in merged.items() if value is not None}


def combined(first: Any, second: Any) -> Any:
    """Two parts of a document. Where both are mappings, the result has the keys of both."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return {**first, **{key: combined(first[key], value) if key in first else value for key, value in second.items()}}


@pytest.mark.parametrize("snippet", of("yaml", "run"))
def test_yaml(snippet: Snippet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = yaml.safe_load(snippet.text)
    schema = str(data.get("schema", "")).partition("/")[0]
    if schema == "executorch-policy":
        assert json_schema.problems("policy", data) == [], snippet.place
        return
    file = tmp_path / "net.yaml"
    file.write_text(snippet.text if schema else json.dumps(whole_manifest(snippet)))
    code = main.main(["validate", str(file)])
    assert code == 0, f"{snippet.place}: {capsys.readouterr().err}\nin {file.read_text()}"


def test_examples_of_the_manifest_fit_their_schemas() -> None:
    """They are the YAML of docs/reference/manifest.md and of docs/reference/manifest/*.md."""
    schema = json.loads((ROOT / "schemas/model.schema.json").read_text("utf-8"))
    whole = jsonschema.Draft202012Validator(schema)
    found = 0

    def check(node: Any, path: str) -> None:
        nonlocal found
        if isinstance(node, dict) and isinstance(node.get("examples"), list) and "description" in node:
            for example in node["examples"]:
                found += 1
                assert [each.message for each in whole.evolve(schema=node).iter_errors(example)] == [], (
                    f"{path}: {example}"
                )
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            check(child, f"{path}/{key}")

    check(schema, "")
    assert found > 150


@pytest.mark.parametrize("snippet", [*of("ini", "run"), *of("json", "run")])
def test_other_data(snippet: Snippet) -> None:
    parse: Callable[[str], object] = (
        json.loads if snippet.language == "json" else configparser.ConfigParser().read_string
    )
    parse(snippet.text)


@pytest.mark.parametrize("snippet", of("sh", "run", "parsed"))
def test_commands(snippet: Snippet, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(commands(f"{snippet.before}\n\n{snippet.text}"))
    assert found, f"{snippet.place}: it has no command that is known"
    for words in found:
        try:
            check = CHECKS.get(words[0])
            problem = check(words) if check else None
        except SystemExit:
            problem = capsys.readouterr().err
        except Exception as error:
            problem = str(error)
        assert not problem, f"{snippet.place}: {' '.join(words)}: {problem}"


def check_etbuild(words: list[str]) -> None:
    main._parse(words[1:], argparse.Namespace())


def check_make(words: list[str]) -> str | None:
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    unknown = [word for word in words[1:] if "=" not in word and word not in targets]
    return f"the Makefile has no target {unknown[0]}" if unknown else None


def check_python(words: list[str]) -> str | None:
    """A module exists. A script is a file of a page, or it is in the repository, and its text has each option."""
    if any(each.notes.get("file") == words[1] for each in snippets()):
        return None
    if words[1] == "-m":
        return None if importlib.util.find_spec(words[2]) else f"there is no module {words[2]}"
    script = next((path for path in (ROOT / words[1], ROOT / "toolchain" / words[1]) if path.is_file()), None)
    if script is None:
        return f"there is no file {words[1]}"
    text = script.read_text("utf-8")
    unknown = [word for word in words if word.startswith("--") and f'"{word.partition("=")[0]}"' not in text]
    return f"{words[1]} has no option {unknown[0]}" if unknown else None


def check_pip(words: list[str]) -> str | None:
    """What is installed is in the repository, with extras that it has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for word in words[2:]:
        if path := re.fullmatch(r"(\.[\w./]*)(?:\[([\w,-]+)\])?", word):
            if not (ROOT / path[1] / "pyproject.toml").is_file():
                return f"there is no package in {path[1]}"
            unknown = set(path[2].split(",") if path[2] else ()) - set(extras)
            if unknown:
                return f"there is no extra {min(unknown)}"
    return None


def check_bazel(words: list[str]) -> str | None:
    """What is ours exists: packages of the rules, flags and output groups."""
    rules = "".join(path.read_text("utf-8") for path in (ROOT / "rules").rglob("*.bzl"))
    for word in words[1:]:
        option, _, value = word.partition("=")
        if option == "--output_groups" and not re.search(rf"\b{value.lstrip('+')}\b", rules):
            return f"no rule has the output group {value}"
        ours = re.search(r"@rules_executorch//([\w/]*):?([\w]*)", word)
        if ours and f'"{ours[2]}"' not in (ROOT / ours[1] / "BUILD").read_text("utf-8"):
            return f"there is no target {ours[0]}"
    return None


CHECKS: Mapping[str, Callable[[list[str]], str | None]] = {
    "etbuild": check_etbuild,
    "make": check_make,
    "python": check_python,
    "python3.11": check_python,
    ".venv/bin/python": check_python,
    "pip": check_pip,
    "bazel": check_bazel,
}


@pytest.mark.parametrize("snippet", of("python", "signature of"))
def test_signatures_of_python(snippet: Snippet) -> None:
    """A property is shown as a value, and a function with its parameters."""
    module, _, path = snippet.notes["signature of"].partition(":")
    *owner, name = path.split(".")
    holder: Any = importlib.import_module(module)
    for part in owner:
        holder = getattr(holder, part)
    found = inspect.getattr_static(holder, name) if owner else getattr(holder, name)
    if isinstance(found, property):
        assert re.match(rf"{path}: \w", snippet.text), snippet.place
    elif inspect.isfunction(found):
        shown = ast.parse(f"def f{snippet.text[snippet.text.index('(') :]}: ...").body[0]
        assert isinstance(shown, ast.FunctionDef)
        arguments = [*shown.args.posonlyargs, *shown.args.args, *shown.args.kwonlyargs]
        expected = [name for name in inspect.signature(found).parameters if name not in ("self", "cls")]
        stars = [each.arg for each in (shown.args.vararg, shown.args.kwarg) if each]
        assert sorted(expected) == sorted([each.arg for each in arguments] + stars), snippet.place


@functools.cache
def starlark_names(file: str) -> Mapping[str, Any]:
    """What a file of the rules defines."""
    return Loader(ROOT).load(ROOT / file.removeprefix("@rules_executorch//").replace(":", "/")).names


@pytest.mark.parametrize("snippet", of("starlark", "signature of"))
def test_signatures_of_starlark(snippet: Snippet) -> None:
    file, _, name = snippet.notes["signature of"].rpartition(":")
    shown = ast.parse(f"def {snippet.text}: pass").body[0]
    assert isinstance(shown, ast.FunctionDef)
    expected = list(inspect.signature(starlark_names(file)[name]).parameters)
    stars = [each.arg for each in (shown.args.vararg, shown.args.kwarg) if each]
    assert expected == [each.arg for each in shown.args.args] + stars, snippet.place
