"""Files are written whole, read back, and published together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

import pytest

from etbuild import files
from etbuild.errors import BuildError


def test_what_is_staged_appears_when_published(tmp_path: Path) -> None:
    with files.staging(tmp_path / "out") as staged:
        artifact = files.write(staged, "a.pte", "program", lambda file: file.write(b"abc"))
        assert not (tmp_path / "out" / "a.pte").exists()
        (published,) = files.publish([artifact], tmp_path / "out")
    assert published.path.read_bytes() == b"abc"
    assert published.facts() == {
        "file": "a.pte",
        "kind": "program",
        "size": 3,
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.pte"]


def test_a_failed_build_leaves_the_files_of_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "a.pte").write_bytes(b"old")

    def build() -> None:
        with files.staging(tmp_path) as staged:
            files.write(staged, "a.pte", "program", lambda file: file.write(b"new"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.pte", b"old")]


def test_an_index_never_stands_beside_files_of_another_build(tmp_path: Path) -> None:
    (tmp_path / "a.index.json").write_bytes(b"old")
    (tmp_path / "a.pte").mkdir()
    with files.staging(tmp_path) as staged:
        made = [files.write(staged, name, "x", lambda file: file.write(b"new")) for name in ("a.pte", "a.index.json")]
        with pytest.raises(BuildError, match=r"a\.pte: cannot write the file: Is a directory"):
            files.publish(made, tmp_path)
    assert not (tmp_path / "a.index.json").exists()


def test_a_write_that_fails_is_an_error(tmp_path: Path) -> None:
    def fail(file: BinaryIO) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BuildError, match=r"a: cannot write the file: No space left on device"):
        files.write(tmp_path, "a", "x", fail)


def test_a_writer_that_swallows_its_error_is_found_out(tmp_path: Path) -> None:
    def lose(file: BinaryIO) -> None:
        file.write(b"counted")
        file.file.seek(0)  # type: ignore[attr-defined]
        file.file.truncate()  # type: ignore[attr-defined]

    with pytest.raises(BuildError, match="what was read back is not what was written"):
        files.write(tmp_path, "a", "x", lose)


def test_files_of_a_renamed_tag_go_with_their_index(tmp_path: Path) -> None:
    for tag in ("old", "new"):
        with files.staging(tmp_path) as staged:
            made = [files.write(staged, f"a.{tag}.ptd", "named_data", lambda file: file.write(b"x"), tag)]
            index = json.dumps({"artifacts": [artifact.facts() for artifact in made]}).encode()
            made.append(files.write(staged, "a.index.json", "index", lambda file, index=index: file.write(index)))
            files.publish(made, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.index.json", "a.new.ptd"]


def test_an_index_that_names_files_elsewhere_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.index.json").write_text('{"artifacts": [{"file": "../precious"}]}')
    with files.staging(tmp_path / "out") as staged:
        files.publish([files.write(staged, "a.index.json", "index", lambda file: file.write(b"{}"))], tmp_path / "out")
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_shards_of_an_earlier_build_go_and_those_of_others_stay(tmp_path: Path) -> None:
    for shards in (["a.tag/1.ptd", "a.tag/2.ptd"], ["a.tag/2.ptd"]):
        with files.staging(tmp_path) as staged:
            (staged / "a.tag").mkdir()
            made = [files.write(staged, shard, "named_data", lambda file: file.write(b"x"), "tag") for shard in shards]
            index = json.dumps({"artifacts": [*(artifact.facts() for artifact in made), {"file": "b.tag/1.ptd"}]})
            made.append(
                files.write(staged, "a.index.json", "index", lambda file, text=index: file.write(text.encode()))
            )
            files.publish(made, tmp_path)
        (tmp_path / "b.tag").mkdir(exist_ok=True)
        (tmp_path / "b.tag/1.ptd").write_bytes(b"another program's")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.ptd")) == [
        "a.tag/2.ptd",
        "b.tag/1.ptd",
    ]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_bytes(b"old")

    def fail() -> None:
        with files.whole_directory(tmp_path / "out") as directory:
            (directory / "half").write_bytes(b"")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]
    with files.whole_directory(tmp_path / "out") as directory:
        (directory / "new").write_bytes(b"new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
