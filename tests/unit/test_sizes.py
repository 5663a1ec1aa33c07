"""`etbuild sizes` adds up what is shipped, by folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etbuild.cli import main

from .indexes import make_index, sha256


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Programs of two teams. All of them have one `.pte` in common, and team a has named data of its own in `two`."""
    directory = tmp_path / "bin"
    for place in ("a/one", "a/two", "b/three"):
        index = make_index()
        index["name"] = place.rpartition("/")[2]
        if place == "a/two":
            index["artifacts"][1]["sha256"] = sha256("own")
        (directory / place).mkdir(parents=True)
        (directory / place / f"{index['name']}.index.json").write_text(json.dumps(index))
    return directory


def sizes(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main.main(["sizes", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_file_counts_once_in_a_folder_and_once_in_all(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(sizes(capsys, built, "--json")) == {
        "folders": {
            "a": {"programs": 2, "bytes": 11000, "shared_bytes": 6000},
            "b": {"programs": 1, "bytes": 6000, "shared_bytes": 6000},
        },
        "programs": 3,
        "bytes": 11000,
    }


def test_the_table_has_a_row_for_each_folder(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes(capsys, built, "--depth", 2).splitlines() == [
        "folder   programs  size     also in other folders",
        "a/one    1         6.0 kB   6.0 kB",
        "a/two    1         6.0 kB   1.0 kB",
        "b/three  1         6.0 kB   6.0 kB",
        "all      3         11.0 kB",
    ]


def test_programs_are_named_with_their_folders(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the rule does, whose files are in other directories than their packages."""
    named = [f"--program=shop/{name}={built}/a/{name}/{name}.index.json" for name in ("one", "two")]
    out = built / "sizes.txt"
    assert sizes(capsys, *named, "-o", out) == ""
    assert out.read_text().splitlines()[1].split() == ["shop", "2", "11.0", "kB", "0", "B"]


def test_a_link_to_a_directory_is_followed_for_the_place(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`bazel-bin` is such a link."""
    link = built.with_name("bazel-bin")
    link.symlink_to(built)
    assert sizes(capsys, link) == sizes(capsys, built)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a directory, or programs with --program"),
        (["{built}", "--program=a=b"], "name a directory, or programs with --program"),
        (["{built}/none"], "no such directory"),
        (["{built}/empty"], "no *.index.json is below it"),
        (["{built}", "--depth", "0"], "it has to be at least 1"),
        (["--program=a"], "expected FOLDER=INDEX"),
        (["{built}/damaged"], "not an index"),
    ],
)
def test_mistakes(built: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    (built / "empty").mkdir()
    (built / "damaged").mkdir()
    (built / "damaged/x.index.json").write_text("{")
    assert main.main(["sizes", *(argument.format(built=built) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
