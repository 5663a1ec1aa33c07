"""The comparison with a lockfile reports the changes, and what to do if they are intended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etbuild.cli import main
from etbuild.results import Index

from .indexes import MANIFEST, edited, make_index, sha256


def write(path: Path, index: Index) -> Path:
    path.write_text(json.dumps(index))
    return path


@pytest.fixture
def locked(tmp_path: Path) -> list[str]:
    """Returns the arguments that compare a program with its lockfile."""
    arguments = [str(write(tmp_path / "net.index.json", make_index())), str(tmp_path / "net.lock.json")]
    assert main.main(["lock", *arguments, "--update"]) == 0
    return arguments


def test_a_lockfile_holds_what_is_shipped(locked: list[str]) -> None:
    lock = json.loads(Path(locked[1]).read_text())
    assert lock["artifacts"] == {
        "net.pte": {"size": 1000, "sha256": sha256("pte")},
        "net.weights.ptd": {"size": 5000, "sha256": sha256("ptd")},
    }
    assert lock["versions"]["torch"] == "2.13.0"  # the CPU build and the registry's build make the same bytes
    assert main.main(["lock", *locked]) == 0


def test_another_report_is_not_a_change(locked: list[str]) -> None:
    index = make_index(edited(MANIFEST, "checks", value={"max_program_bytes": 9000}))
    index["artifacts"][2]["sha256"] = sha256("other")
    write(Path(locked[0]), index)
    assert main.main(["lock", *locked]) == 0


def test_every_change_is_listed(locked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    index = make_index(edited(MANIFEST, "methods", "embed", value={"example_inputs": [{"shape": [1]}]}))
    index["versions"]["etbuild"] = "0.3.0"
    program, named_data, *_ = index["artifacts"]
    program["size"], program["sha256"] = 1500, sha256("larger")
    named_data["sha256"] = sha256("retrained")
    index["artifacts"].insert(2, {"file": "net.more.ptd", "kind": "named_data", "size": 9, "sha256": sha256("more")})
    write(Path(locked[0]), index)
    capsys.readouterr()
    assert main.main(["lock", *locked, "--hint", "bazel run //net:update"]) == 3
    assert capsys.readouterr().err == (
        "error: net.lock.json: the program differs from the lockfile:\n"
        "    methods: [decode, prefill] -> [decode, embed, prefill]\n"
        "    versions.etbuild: 0.2.0 -> 0.3.0\n"
        "    net.more.ptd: added, 9 B\n"
        "    net.pte: 1.0 kB -> 1.5 kB (+500 bytes)\n"
        f"    net.weights.ptd: the same size, other content: {sha256('ptd')[:16]} -> {sha256('retrained')[:16]}\n"
        "    if this is intended: bazel run //net:update\n"
    )
    assert main.main(["lock", *locked, "--update"]) == 0
    assert main.main(["lock", *locked]) == 0


def test_other_versions_that_made_the_same_program_are_not_a_difference(locked: list[str]) -> None:
    path = Path(locked[0])
    index = json.loads(path.read_text("utf-8"))
    index["versions"]["etbuild"] = "0.3.0"
    path.write_text(json.dumps(index), "utf-8")
    assert main.main(["lock", *locked]) == 0


def test_there_is_no_lockfile_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = write(tmp_path / "net.index.json", make_index())
    assert main.main(["lock", str(index), str(tmp_path / "net.lock.json")]) == 3
    assert f"there is no lockfile yet\n    etbuild lock {index}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "executorch-lock/v1"}', '{"schema": "other"}'])
def test_a_file_that_is_not_a_lockfile_is_refused(
    locked: list[str], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(locked[1]).write_text(content)
    assert main.main(["lock", *locked]) == 2
    told = capsys.readouterr().err
    assert "not a lockfile" in told
    assert ("--update" in told) == (content in ("", '{"schema": "executorch-lock/v1"}'))


@pytest.mark.parametrize("content", ["{}", '{"schema": "executorch-index/v2"}', "schema: executorch-model/v1\n", "\0"])
def test_another_file_is_not_replaced(locked: list[str], content: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as the index or the manifest, if somebody mixes up the arguments."""
    Path(locked[1]).write_text(content)
    assert main.main(["lock", *locked, "--update"]) == 2
    assert "is not a lockfile, so it is not replaced" in capsys.readouterr().err
    assert Path(locked[1]).read_text() == content


@pytest.mark.parametrize("damage", ["", "<<<<<<< main\n{}", "{}\n>>>>>>> other\n"])
def test_a_damaged_lockfile_is_replaced(locked: list[str], damage: str) -> None:
    lock = Path(locked[1])
    lock.write_text(damage.format(lock.read_text()))
    assert main.main(["lock", *locked, "--update"]) == 0
    assert main.main(["lock", *locked]) == 0
