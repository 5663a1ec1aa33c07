"""Makes each use of the file system by published files and by the cache fail once, and kills the process before
each."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etbuild.files import writing
from etbuild.publishing import artifacts
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

from .injected import fail, kill, places, run, tree

KEY, OTHER = (hashlib.sha256(name).hexdigest() for name in (b"one", b"two"))
FILES = {"net.pte": b"program" * 100, "net.tag/shard.ptd": b"weights" * 300, "net.index.json": b""}
ERRORS = [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE]
CLEAR = ("BuildError: ", "InputError: ")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory if the machine has one: a disk would take time to write files that are removed at once."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


def build(directory: Path, content: bytes, names: list[str]) -> None:
    """Publishes files with this content, and an index of them."""
    with artifacts.staging(directory) as staged:
        made = [writing.write(staged, name, "file", lambda file: file.write(content)) for name in names]
        index = json.dumps({"artifacts": [artifact.facts() for artifact in made]}).encode()
        made.append(writing.write(staged, "net.index.json", "index", lambda file: file.write(index)))
        artifacts.publish(made, directory)


def check_published(directory: Path) -> None:
    """Checks that each file is complete, and that the files in the index exist."""
    found = {name: content for name, content in tree(directory).items() if not name.startswith(".etbuild-")}
    index = found.pop("net.index.json", None)
    assert set(found.values()) <= {b"old" * 1000, b"new" * 1000}
    if index is not None:
        listed = {one["file"]: one["sha256"] for one in json.loads(index)["artifacts"]}
        assert {name: hashlib.sha256(found[name]).hexdigest() for name in listed} == listed


@pytest.mark.parametrize("error", [None, errno.ENOSPC])
def test_publishing_survives_an_error_or_a_kill_at_each_file_operation(memory: Path, error: int | None) -> None:
    out = memory / "out"
    old, new = ["net.pte", "net.old.ptd", "net.tag/1.ptd"], ["net.pte", "net.tag/2.ptd"]
    work: Callable[[], None] = lambda: build(out, b"new" * 1000, new)  # noqa: E731
    build(out, b"old" * 1000, old)
    for place in places(work):
        build(out, b"old" * 1000, old)
        ended, said = run(work, place, fail(error) if error else kill)
        assert ended == -signal.SIGKILL if error is None else said == "" or said.startswith(CLEAR), said
        check_published(out)
        build(out, b"new" * 1000, new)
        assert not list(out.glob(".etbuild-*"))
        check_published(out)
        shutil.rmtree(out)


@pytest.mark.parametrize("error", [None, errno.EMFILE])
def test_a_directory_is_replaced_whole_despite_an_error_or_a_kill_at_each_file_operation(
    memory: Path, error: int | None
) -> None:
    out = memory / "out"

    def make(content: bytes) -> None:
        with artifacts.whole_directory(out) as made:
            (made / "deep").mkdir()
            for name in ("a", "deep/b"):
                writing.write(made, name, "file", lambda file: file.write(content))

    make(b"old")
    for place in places(lambda: make(b"new")):
        make(b"old")
        ended, said = run(lambda: make(b"new"), place, fail(error) if error else kill)
        assert ended == -signal.SIGKILL if error is None else said == "" or said.startswith(CLEAR), said
        assert tree(out) in ({}, {"a": b"old", "deep/b": b"old"}, {"a": b"new", "deep/b": b"new"})
        make(b"new")
        assert [path.name for path in memory.iterdir()] == ["out"]


class Missed(Exception):
    """The cache had no entry."""


class Kept:
    """A cache with one entry, and its reports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source, self.target = root / "source", root / "target"
        for name, content in FILES.items():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            (self.source / name).write_bytes(content)
        self.cache = Cache(root / "cache")
        self.cache.store("program", KEY, self.source, list(FILES))
        self.entry = tree(root / "cache")

    def fetch(self) -> None:
        """Fetches into an empty directory.

        Raises:
            Missed: The cache returned nothing. The message is the cache's report.
        """
        said: list[str] = []
        if Cache(self.root / "cache", said.append).fetch("program", KEY, self.target) is None:
            raise Missed(*said)

    def empty(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()

    def is_whole(self) -> bool:
        """Returns whether the entry is unchanged."""
        return self.entry.items() <= tree(self.root / "cache").items()


@pytest.fixture
def kept(memory: Path) -> Kept:
    return Kept(memory)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: errno.errorcode[error])
def test_no_error_of_the_system_loses_an_entry(kept: Kept, error: int) -> None:
    kept.empty()
    for place in places(kept.fetch):
        kept.empty()
        _, said = run(kept.fetch, place, fail(error))
        assert said.startswith(("Missed: ", *CLEAR)) or said == "", said
        assert tree(kept.target) == ({} if said else FILES), (place, said)
        assert said != "Missed: \n"
        assert kept.is_whole(), (place, said)
    kept.empty()
    kept.fetch()


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("verb", ["verify", "gc", "info"])
def test_no_error_of_the_system_makes_upkeep_lose_an_entry(kept: Kept, verb: str, error: int) -> None:
    def work() -> None:
        cache = Cache(kept.root / "cache")
        getattr(cache_upkeep, verb)(cache, *([10**9] if verb == "gc" else []))

    for place in places(work):
        _, said = run(work, place, fail(error))
        assert said == "" or said.startswith(CLEAR), said
        assert kept.is_whole(), (place, said)


@pytest.mark.parametrize("error", [None, errno.EIO])
def test_storing_survives_an_error_or_a_kill_at_each_file_operation(kept: Kept, error: int | None) -> None:
    (kept.source / "net.pte").write_bytes(b"another program" * 100)
    work = lambda: Cache(kept.root / "cache", lambda line: None).store("program", OTHER, kept.source, list(FILES))  # noqa: E731
    for place in places(work):
        shutil.rmtree(kept.root / "cache")
        Cache(kept.root / "cache")
        ended, said = run(work, place, fail(error) if error else kill)
        assert ended == -signal.SIGKILL if error is None else said == "" or said.startswith(CLEAR), said
        assert cache_upkeep.verify(Cache(kept.root / "cache")) == []
        assert list((kept.root / "cache/tmp").iterdir()) == []


def test_a_killed_collector_leaves_a_valid_cache(kept: Kept) -> None:
    for place in places(lambda: cache_upkeep.gc(kept.cache, 0)):
        for key in (KEY, OTHER):
            kept.cache.store("program", key, kept.source, list(FILES))
        run(lambda: cache_upkeep.gc(kept.cache, 0), place, kill)
        assert cache_upkeep.verify(kept.cache) == []  # a record is removed before its blobs
