"""Flips every byte of a record and many bytes of the blobs in the cache entries of a real program."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.local.cache.store import Cache

from .projects import artifacts, build, write_project


class Filled:
    """A cache with one program, and the content of each entry."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest = write_project(root / "in", 4)
        self.program = build(self.manifest, root / "out", "--cache-dir", str(root / "cache"))
        self.said: list[str] = []
        self.cache = Cache(root / "cache", self.said.append)
        self.records = self._files("records")
        self.blobs = self._files("blobs")
        self.right = {path: self.fetch(path) for path in self.records}

    def _files(self, folder: str) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted((self.root / "cache" / folder).rglob("*")) if path.is_file()}

    def fetch(self, record: Path) -> dict[str, bytes] | None:
        target = self.root / "fetched"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        names = self.cache.fetch(record.parent.parent.name, record.name, target)
        return None if names is None else {name: (target / name).read_bytes() for name in names}

    def restore(self) -> None:
        for path, content in {**self.records, **self.blobs}.items():
            path.write_bytes(content)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return Filled(tmp_path_factory.mktemp("filled"))


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def test_all_steps_are_kept(filled: Filled) -> None:
    kinds = [path.parent.parent.name for path in filled.records]
    assert kinds == ["compare", "compared", "compared", "export", "lower", "method", "program"]
    program = filled.right[list(filled.records)[kinds.index("program")]]
    assert program is not None
    beside = {name: program[name] for name in ("agreement.json", "checked.files.json", "compared.json")}
    assert program == {**filled.program, **beside}


def test_a_flip_of_any_byte_of_a_record_is_noticed(filled: Filled) -> None:
    for record, content in filled.records.items():
        for place in range(len(content)):
            record.write_bytes(flip(content, place))
            assert filled.fetch(record) is None, (record, place)
        record.write_bytes(content)
        assert filled.fetch(record) == filled.right[record]


@pytest.mark.parametrize("flips", [250, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_flips_in_blobs_give_the_right_files_or_none(filled: Filled, flips: int) -> None:
    chance = random.Random(11)
    for _ in range(flips):
        blob = chance.choice([path for path, content in filled.blobs.items() if content])
        blob.write_bytes(flip(filled.blobs[blob], chance.randrange(len(filled.blobs[blob]))))
        for record in filled.records:
            assert filled.fetch(record) in (None, filled.right[record])
        filled.restore()


@pytest.mark.parametrize("folder", ["records", "blobs"])
def test_a_build_replaces_damaged_cache_entries_and_reports_them(
    filled: Filled, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = filled.records if folder == "records" else filled.blobs
    for path, content in entries.items():
        path.write_bytes(flip(content, len(content) // 2) if content else b"x")
    where = ["--cache-dir", str(filled.root / "cache"), "--json"]
    run: Callable[[], int] = lambda: main.main(["build", str(filled.manifest), "-o", str(tmp_path), *where])  # noqa: E731
    assert run() == 0
    printed = capsys.readouterr()
    assert printed.err.count("was damaged and is removed") >= 3
    assert json.loads(printed.out)["steps"] == {"export": "run", "lower": "run", "compare": "run", "report": "run"}
    assert artifacts(tmp_path) == filled.program
    assert run() == 0
    assert json.loads(capsys.readouterr().out)["steps"] == {"program": "cached"}
    filled.restore()


def test_a_build_does_not_use_a_damaged_file_of_an_export(filled: Filled, tmp_path: Path) -> None:
    export, *_, program = filled.records
    for entry in json.loads(export.read_bytes().partition(b"\n")[2])["files"]:
        program.unlink()  # so that the build looks for the export
        blob = filled.root / "cache" / "blobs" / entry["sha256"][:2] / entry["sha256"]
        blob.write_bytes(flip(filled.blobs[blob], 0))
        where = ["-o", str(tmp_path / entry["sha256"]), "--cache-dir", str(filled.root / "cache")]
        assert main.main(["build", str(filled.manifest), *where]) == 0, entry
        assert artifacts(tmp_path / entry["sha256"]) == filled.program, entry
        filled.restore()


@pytest.mark.parametrize("name", ["../model.yaml", "model.yaml", "other.pte"])
def test_an_index_in_the_cache_moves_no_other_file(filled: Filled, tmp_path: Path, name: str) -> None:
    """Anyone who can write to a cache can store their own entry with correct digests."""
    key = next(path.name for path in filled.records if path.parent.parent.name == "program")
    staged, out = tmp_path / "staged", tmp_path / "out"
    staged.mkdir()
    names = filled.cache.fetch("program", key, staged)
    assert names is not None
    index = staged / next(each for each in names if each.endswith(".index.json"))
    content = json.loads(index.read_bytes())
    content["artifacts"][0]["file"] = name
    index.write_text(json.dumps(content), "utf-8")
    filled.cache.store("program", key, staged, names)
    manifest = filled.manifest.read_bytes()
    try:
        code = main.main(["build", str(filled.manifest), "-o", str(out), "--cache-dir", str(filled.root / "cache")])
        assert code == 1
        assert [path for path in out.iterdir() if not path.name.startswith(".")] == []
        assert filled.manifest.read_bytes() == manifest
    finally:
        filled.restore()
