"""Text from files is escaped on a terminal: it cannot move the cursor, begin a line, or change the reading
direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etbuild.cli import main
from etbuild.errors import Problem, printable, steers
from etbuild.results import BlobSizes, FileHead, ProgramFile, ProgramMethod
from etkit.inspection import program_text
from etkit.tables import table

from .indexes import MANIFEST, edited, make_index

EVIL = "a\x1b[2J\x1b]0;b\x07\r\x9b31m\u202ec\u2066\u2028\x7f\x00"


def is_clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_escapes_name_the_character() -> None:
    assert printable("a\x1b\n\u202e\U000e0001") == r"a\x1b\n\u202e\U000e0001"
    assert printable("Größe 数 😀") == "Größe 数 😀"


def test_a_problem_has_lines_of_its_own() -> None:
    said = str(Problem(f"first{EVIL}\nerror: second", path=(EVIL,), hint=f"{EVIL}\nerror: third"))
    assert is_clean(said)
    assert [line.startswith("    ") for line in said.split("\n")] == [False, True, True, True]


def test_names_in_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = json.dumps(EVIL)
    path = tmp_path / f"{EVIL.replace(chr(0), '')}.yaml"
    path.write_text(f"{evil}: 1\nname: {evil}\nmethods: {{{evil}: 1}}\nmodel: {{factory: {evil}, weights: {evil}}}\n")
    assert main.main(["validate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") < 20
    assert is_clean(said)


def test_names_in_indexes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make_index()
    second = make_index(edited(MANIFEST, "model", "kwargs", value={EVIL: EVIL + "\n"}), sources={EVIL: "0" * 64})
    second["artifacts"][0]["file"] = "n" + EVIL.replace("\0", "") + "\n"
    second["tensors"]["net.safetensors"] = {EVIL + "\n": "1" * 64}
    paths = [tmp_path / f"{name}.index.json" for name in ("first", "second")]
    for path, index in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(index))
    lock = tmp_path / "net.lock.json"
    assert main.main(["lock", str(paths[1]), str(lock), "--update"]) == 0
    for arguments in (["explain", paths[1]], ["explain", *paths], ["diff", *paths], ["lock", paths[0], lock]):
        capsys.readouterr()
        assert main.main([*map(str, arguments)]) in (0, 3)
        said = capsys.readouterr()
        assert "\\x1b" in said.out + said.err
        assert is_clean(said.out + said.err)


def test_names_in_programs() -> None:
    method: ProgramMethod = {"inputs": [], "outputs": [], "operators": {EVIL: 1}, "delegates": {EVIL: 1}, "memory": []}
    sizes: BlobSizes = {"constants": [], "mutable": [], "delegates": [], "named_data": {}}
    head: FileHead = {"file": EVIL, "size": 1, "sha256": ""}
    program: ProgramFile = {
        "kind": "program",
        **head,
        "methods": {EVIL: method},
        "bytes": sizes,
        "external_keys": [EVIL],
    }
    assert is_clean(program_text.text(program))
    assert is_clean(program_text.text({"kind": "named_data", **head, "named_data": {EVIL: 1}}))
    assert is_clean(table([("a", "b"), (EVIL, EVIL)]))


@pytest.mark.parametrize(
    "name", ["\u0645\u062f\u0644\u200c\u0647\u0627", "na\u00a0me", "\u3000", "e\u0301", "\U0001f468\u200d\U0001f469"]
)
def test_ordinary_characters_without_a_form_may_be_in_names(name: str) -> None:
    assert not steers(name)


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\u202eb", "\u2066", "\x9b", "\ud800", "\u2028", "\u200f"])
def test_characters_that_control_a_terminal_or_reverse_text_may_not(name: str) -> None:
    assert steers(name)
