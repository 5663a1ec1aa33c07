"""When the digest of a file is computed again, and when not."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etbuild.files import digests, writing
from etbuild.processes import forked, handover
from etkit.local.cache.store import Cache

_TICK_SECONDS = 0.05  # more than the step in which file systems count time


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets every file be old enough, within the context of a build."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3_000_000_000)
    with digests.hashed_once():
        yield


def is_known(path: Path) -> bool:
    """Whether the digest of a file as it is now is known."""
    return digests.FileState.of(path, path.stat()) in digests.known()


def written(path: Path, content: bytes = b"one") -> Path:
    path.write_bytes(content)
    return path


def test_a_file_that_stays_is_read_once(tmp_path: Path, settled: None) -> None:
    path = written(tmp_path / "w")
    assert digests.file_digest(path) == hashlib.sha256(b"one").hexdigest()
    assert is_known(path)
    digests.learn(dict.fromkeys(digests.known(), "as it was learned"))
    assert digests.file_digest(path) == "as it was learned"


def test_a_file_that_is_too_new_is_read_each_time(tmp_path: Path) -> None:
    with digests.hashed_once():
        path = written(tmp_path / "w")
        digests.file_digest(path)
        os.utime(path, (0, 0))  # this changes ctime too
        digests.file_digest(path)
        assert not digests.known()


def test_nothing_is_known_outside_of_a_build(tmp_path: Path, settled: None) -> None:
    assert digests.file_digest(written(tmp_path / "w"))
    inner = digests.known()
    with digests.hashed_once():
        assert digests.known() == inner
    assert digests.known() == inner


def test_a_build_forgets_what_it_knew(tmp_path: Path) -> None:
    with digests.hashed_once():
        writing.write(tmp_path, "w", "file", b"one")
        assert is_known(tmp_path / "w")
    assert not digests.known()
    writing.write(tmp_path, "v", "file", b"one")
    assert not digests.known()


def _restore_times(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    other = written(path.with_name("other"), b"two")
    before = path.stat()
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def _write_mapped(path: Path) -> None:
    import mmap

    with path.open("r+b") as file, mmap.mmap(file.fileno(), 3) as mapped:
        mapped[:] = b"two"


@pytest.mark.parametrize("edit", [_restore_times, _replace, _write_mapped, lambda path: written(path, b"two")])
def test_each_edit_of_the_same_size_is_found(tmp_path: Path, settled: None, edit: Callable[[Path], object]) -> None:
    path = written(tmp_path / "w")
    digests.file_digest(path)
    assert is_known(path)
    time.sleep(_TICK_SECONDS)
    edit(path)
    assert path.read_bytes() == b"two"
    assert digests.file_digest(path) == hashlib.sha256(b"two").hexdigest()


def test_an_edit_of_a_file_that_the_build_wrote_is_found(tmp_path: Path) -> None:
    with digests.hashed_once():
        made = writing.write(tmp_path, "w", "file", b"one")
        time.sleep(_TICK_SECONDS)
        _restore_times(made.path)
        assert digests.file_digest(made.path) == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_changes_while_it_is_read_is_not_known(tmp_path: Path, settled: None) -> None:
    path = written(tmp_path / "w")
    time.sleep(_TICK_SECONDS)
    with path.open("rb") as file:
        read = file.read

        class Changing:
            def fileno(self) -> int:
                return file.fileno()

            def read(self, size: int) -> bytes:
                block = read(size)
                if block:
                    written(path, b"two")
                return block

        digests.open_file_digest(path, Changing())  # type: ignore[arg-type]
    assert not digests.known()


def test_the_digest_of_a_file_that_a_child_wrote_is_known(tmp_path: Path) -> None:
    with digests.hashed_once():
        forked.run({"writing": lambda: writing.write(tmp_path, "w", "file", b"one")}, 1)
        assert is_known(tmp_path / "w")


def test_the_process_that_builds_knows_what_the_watching_one_hashed(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = digests.file_digest(written(tmp_path / "w"))
    handed = handover.give()
    with monkeypatch.context() as patch:
        patch.setattr(digests, "_known", [])  # as in a new process
        patch.setattr(digests, "_handed", {})
        handover.take(handed)
        with digests.hashed_once():
            assert list(digests.known().values()) == [digest]
            assert is_known(tmp_path / "w")


def test_what_the_cache_copies_is_known(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path / "cache"), "0" * 64
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    with digests.hashed_once():
        made = writing.write(tmp_path / "in", "w", "file", b"one")
        for step in ("lower", "program"):
            cache.store(step, key, made.directory, ["w"])
            assert is_known(tmp_path / f"cache/blobs/{made.sha256[:2]}/{made.sha256}")
        assert cache.fetch("program", key, tmp_path / "out") == ["w"]
        assert is_known(tmp_path / "out/w")


def test_a_blob_that_was_damaged_during_the_build_is_stored_again(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path / "cache"), "0" * 64
    with digests.hashed_once():
        made = writing.write(tmp_path, "w", "file", b"one")
        cache.store("lower", key, tmp_path, ["w"])
        time.sleep(_TICK_SECONDS)
        blob = tmp_path / f"cache/blobs/{made.sha256[:2]}/{made.sha256}"
        _restore_times(blob)
        cache.store("program", key, tmp_path, ["w"])
        assert blob.read_bytes() == b"one"
