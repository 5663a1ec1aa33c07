"""Files are written atomically, read back, and published together."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from etbuild.errors import BuildError
from etbuild.files import copying, writing
from etbuild.publishing import artifacts


def writes(data: bytes) -> Callable[[BinaryIO], object]:
    """Returns a function that writes these bytes to a file."""
    return lambda file: file.write(data)


def test_what_is_staged_appears_when_published(tmp_path: Path) -> None:
    with artifacts.staging(tmp_path / "out") as staged:
        artifact = writing.write(staged, "a.pte", "program", lambda file: file.write(b"abc"))
        assert not (tmp_path / "out" / "a.pte").exists()
        (published,) = artifacts.publish([artifact], tmp_path / "out")
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
        with artifacts.staging(tmp_path) as staged:
            writing.write(staged, "a.pte", "program", lambda file: file.write(b"new"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.pte", b"old")]


def test_an_index_never_stands_beside_files_of_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a.pte": b"old", "a.index.json": b"{}"})
    failing_move(monkeypatch, 1, OSError)
    with pytest.raises(BuildError, match=r"a\.index\.json: cannot write the file: faulty"):
        publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})
    assert tree(tmp_path) == {"a.pte": b"old", "a.index.json": b"{}"}


def test_a_write_that_fails_is_an_error(tmp_path: Path) -> None:
    def fail(file: BinaryIO) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BuildError, match=r"a: cannot write the file: No space left on device"):
        writing.write(tmp_path, "a", "x", fail)


def test_a_write_error_that_the_writer_swallows_is_detected(tmp_path: Path) -> None:
    def lose(file: BinaryIO) -> None:
        file.write(b"counted")
        file.file.seek(0)  # type: ignore[attr-defined]
        file.file.truncate()  # type: ignore[attr-defined]

    with pytest.raises(BuildError, match="the file has other content than was written"):
        writing.write(tmp_path, "a", "x", lose)


@pytest.mark.parametrize("size", [10, writing._SMALL + 7])
def test_parts_of_other_files_are_copied(tmp_path: Path, size: int) -> None:
    """Small files are read back by one thread, and large ones by several, which have ended afterwards."""
    content, threads = bytes(range(251)) * (size // 251 + 1), threading.enumerate()
    (tmp_path / "source").write_bytes(content)

    def write(file: BinaryIO) -> None:
        file.write(b"head")
        with (tmp_path / "source").open("rb") as source:
            file.copy(source, 3, size, zlib.crc32(content[3 : 3 + size]))  # type: ignore[attr-defined]
        file.write(b"tail")

    artifact = writing.write(tmp_path, "a.pte", "program", write)
    assert artifact.path.read_bytes() == b"head" + content[3 : 3 + size] + b"tail"
    assert (artifact.size, artifact.sha256) == (size + 8, hashlib.sha256(artifact.path.read_bytes()).hexdigest())
    assert threading.enumerate() == threads


@pytest.mark.parametrize("length", [9, 10])
def test_a_part_that_has_changed_is_detected(tmp_path: Path, length: int) -> None:
    (tmp_path / "source").write_bytes(b"x" * length)

    def write(file: BinaryIO) -> None:
        with (tmp_path / "source").open("rb") as source:
            file.copy(source, 0, 10, zlib.crc32(b"0123456789"))  # type: ignore[attr-defined]

    with pytest.raises(BuildError, match="ends too early" if length < 10 else "other content than was written"):
        writing.write(tmp_path, "a.pte", "program", write)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, 0])
def test_files_are_copied_without_the_kernel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> int:
        if number:
            raise OSError(number, "no")
        return 0

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "source").write_bytes(b"0123456789")
    with (tmp_path / "source").open("rb") as source, (tmp_path / "target").open("wb") as target:
        target.write(b"a")
        copying.copy_part(source, target, 2, 5)
        target.write(b"b")
    assert (tmp_path / "target").read_bytes() == b"a23456b"


def test_files_of_a_renamed_tag_go_with_their_index(tmp_path: Path) -> None:
    for tag in ("old", "new"):
        with artifacts.staging(tmp_path) as staged:
            made = [writing.write(staged, f"a.{tag}.ptd", "named_data", lambda file: file.write(b"x"), tag)]
            index = json.dumps({"artifacts": [artifact.facts() for artifact in made]}).encode()
            made.append(writing.write(staged, "a.index.json", "index", writes(index)))
            artifacts.publish(made, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.index.json", "a.new.ptd"]


def test_an_index_that_names_files_elsewhere_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.index.json").write_text('{"artifacts": [{"file": "../precious"}]}')
    with artifacts.staging(tmp_path / "out") as staged:
        artifacts.publish(
            [writing.write(staged, "a.index.json", "index", lambda file: file.write(b"{}"))], tmp_path / "out"
        )
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_shards_of_an_earlier_build_go_and_those_of_others_stay(tmp_path: Path) -> None:
    for shards in (["a.tag/1.ptd", "a.tag/2.ptd"], ["a.tag/2.ptd"]):
        with artifacts.staging(tmp_path) as staged:
            (staged / "a.tag").mkdir()
            made = [
                writing.write(staged, shard, "named_data", lambda file: file.write(b"x"), "tag") for shard in shards
            ]
            index = json.dumps({"artifacts": [*(artifact.facts() for artifact in made), {"file": "b.tag/1.ptd"}]})
            made.append(writing.write(staged, "a.index.json", "index", writes(index.encode())))
            artifacts.publish(made, tmp_path)
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
        with artifacts.whole_directory(tmp_path / "out") as directory:
            (directory / "half").write_bytes(b"")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["old"]
    with artifacts.whole_directory(tmp_path / "out") as directory:
        (directory / "new").write_bytes(b"new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def publish(directory: Path, content: dict[str, bytes]) -> None:
    """Publishes files. The last one is the index."""
    with artifacts.staging(directory) as staged:
        made = [writing.write(staged, name, "x", writes(data)) for name, data in content.items()]
        artifacts.publish(made, directory)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    directory = tmp_path / "precious"
    directory.mkdir()
    for name in ("a.ptd", "1.ptd", "2.ptd"):
        (directory / name).write_bytes(b"mine")
    return directory


def untouched(precious: Path) -> bool:
    return {path.name: path.read_bytes() for path in precious.iterdir()} == dict.fromkeys(
        ("a.ptd", "1.ptd", "2.ptd"), b"mine"
    )


def test_an_index_that_lists_files_through_a_link_removes_nothing(tmp_path: Path, precious: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.dir").symlink_to(precious)
    (out / "a.index.json").write_text('{"artifacts": [{"file": "a.dir/a.ptd"}, {"file": "a.dir/1.ptd"}]}')
    publish(out, {"a.pte": b"new", "a.index.json": b"{}"})
    assert untouched(precious)
    assert (out / "a.dir").is_symlink()


def test_an_index_may_list_names_that_no_file_can_have(tmp_path: Path) -> None:
    name = f"a.{'t' * 300}.ptd"
    (tmp_path / "a.index.json").write_text(json.dumps({"artifacts": [{"file": name}, {"file": f"{name[:-4]}/1.ptd"}]}))
    publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})
    assert tree(tmp_path) == {"a.pte": b"new", "a.index.json": b"{}"}


def test_an_index_removes_nothing_but_artifacts(tmp_path: Path) -> None:
    for name in ("a.py", "a.yaml", "a.safetensors", "a.index.json.bak"):
        (tmp_path / name).write_bytes(b"mine")
    listed = [
        *(path.name for path in tmp_path.iterdir()),
        5,
        None,
        ["a.pte"],
        "a.x\0.ptd",
        "a.\ud800.ptd",
        "",
        "a." * 5000,
    ]
    (tmp_path / "a.index.json").write_text(json.dumps({"artifacts": [{"file": name} for name in listed]}))
    publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("index", ["[" * 100_000, '{"artifacts": 5}', '{"artifacts": [5]}', "null", "\udcff"])
def test_a_file_that_is_not_an_index_is_replaced(tmp_path: Path, index: str) -> None:
    (tmp_path / "a.index.json").write_text(index, errors="surrogateescape")
    publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})
    assert (tmp_path / "a.index.json").read_bytes() == b"{}"


def test_an_index_that_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.index.json").symlink_to("/dev/zero")
    publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})
    assert (tmp_path / "a.index.json").read_bytes() == b"{}"


def test_shards_are_not_written_through_a_link(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.tag").symlink_to(precious)
    with pytest.raises(BuildError, match=r"cannot write the file: `a\.tag` is a link"):
        publish(tmp_path / "out", {"a.tag/1.ptd": b"new", "a.index.json": b"{}"})
    assert untouched(precious)


def test_a_link_in_place_of_an_artifact_is_replaced(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.pte").symlink_to(precious / "a.ptd")
    (tmp_path / "out/a.index.json").symlink_to(precious / "1.ptd")
    publish(tmp_path / "out", {"a.pte": b"new", "a.index.json": b"{}"})
    assert untouched(precious)
    assert (tmp_path / "out/a.pte").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_whole_directory_replaces_only_directories(tmp_path: Path, precious: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "link":
        out.symlink_to(precious)
    else:
        out.write_bytes(b"mine")

    def make() -> None:
        with artifacts.whole_directory(out) as made:
            (made / "new").write_bytes(b"")

    with pytest.raises(BuildError, match=f"out: cannot write the file: `out` is a {kind}"):
        make()
    assert untouched(precious)
    assert kind == "link" or out.read_bytes() == b"mine"


def test_a_small_file_is_replaced_at_once_and_takes_no_other_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.pte").write_bytes(b"program")
    (tmp_path / "a.lock.json").write_text('{"artifacts": [{"file": "a.pte"}]}')
    artifacts.replace(tmp_path / "a.lock.json", b"{}")
    assert (tmp_path / "a.pte").read_bytes() == b"program"
    assert (tmp_path / "a.lock.json").read_bytes() == b"{}"


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """For root, a rename over `/dev/null` would replace the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(BuildError, match="is not a regular file, so it is not replaced"):
            artifacts.replace(tmp_path / name, b"content")
    assert (tmp_path / "link").is_fifo()
    with pytest.raises(BuildError, match="File name too long"):
        artifacts.replace(tmp_path / ("x" * 300), b"content")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_read_only_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BuildError, match="cannot write the file: Permission denied"):
        publish(tmp_path, {"a.pte": b"new", "a.index.json": b"{}"})


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def failing_move(monkeypatch: pytest.MonkeyPatch, moves: int, error: type[BaseException]) -> None:
    """Makes a move fail after this many."""
    move, left = os.replace, moves

    def failing(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise error(errno.EIO, "faulty")
        move(source, target)

    monkeypatch.setattr(os, "replace", failing)


def publish_two(directory: Path, new: bytes, removed: tuple[str, ...] = ()) -> None:
    """Publishes the builds `a` and `b` as one."""
    with artifacts.staging(directory) as staged:
        builds = [
            [writing.write(staged, f"{name}.{file}", "x", writes(new)) for file in ("pte", "x/1.ptd", "index.json")]
            for name in ("a", "b")
        ]
        artifacts.publish_together(builds, directory, removed)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("earlier", [True, False], ids=["over an earlier build", "new"])
def test_two_builds_appear_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool, links: bool, error: type[BaseException]
) -> None:
    """Each move fails once."""
    (tmp_path / "mine").write_bytes(b"mine")
    if earlier:
        (tmp_path / "c.pte").write_bytes(b"removed")
        for name in ("a", "b"):
            listed = json.dumps({"artifacts": [{"file": f"{name}.pte"}, {"file": f"{name}.old.ptd"}]}).encode()
            publish(tmp_path, {f"{name}.pte": b"old", f"{name}.old.ptd": b"old", f"{name}.index.json": listed})

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    before, removed = tree(tmp_path), ("c.pte",) if earlier else ()
    for moves in range(6):
        with monkeypatch.context() as patched:
            failing_move(patched, moves, error)
            with pytest.raises((BuildError, KeyboardInterrupt)):
                publish_two(tmp_path, b"new", removed)
        assert tree(tmp_path) == before
        assert not list(tmp_path.glob("*.x"))
    publish_two(tmp_path, b"new", removed)
    new = {f"{name}.{file}": b"new" for name in ("a", "b") for file in ("pte", "x/1.ptd", "index.json")}
    assert tree(tmp_path) == {"mine": b"mine", **new}


def test_only_etrecords_of_methods_are_removed(tmp_path: Path) -> None:
    publish(tmp_path, {"a.etrecords/f.etrecord": b"", "a.etrecords/g.etrecord": b"", "a.index.json": b"{}"})
    for name in ("my copy.etrecord", "f.v1.etrecord"):
        (tmp_path / "a.etrecords" / name).write_bytes(b"mine")
    publish(tmp_path, {"a.etrecords/f.etrecord": b"", "a.index.json": b"{}"})
    records = sorted(path.name for path in (tmp_path / "a.etrecords").iterdir())
    assert records == ["f.etrecord", "f.v1.etrecord", "my copy.etrecord"]


def test_a_directory_in_the_way_of_one_of_two_builds_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "b.pte").mkdir()
    (tmp_path / "b.pte/mine").write_bytes(b"mine")
    (tmp_path / "a.pte").write_bytes(b"old")
    with pytest.raises(BuildError, match=r"b\.pte: cannot write the file"):
        publish_two(tmp_path, b"new")
    assert tree(tmp_path) == {"b.pte/mine": b"mine", "a.pte": b"old"}
