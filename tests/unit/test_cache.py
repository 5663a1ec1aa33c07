"""The local cache verifies every entry, loses none, and can be used by several processes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from etbuild.errors import InputError
from etkit.building import cache_upkeep
from etkit.local.cache import entries
from etkit.local.cache.store import Cache

KEY, OTHER = (hashlib.sha256(name).hexdigest() for name in (b"one", b"two"))
FILES = {"net.pte": b"program" * 100, "net.tag/shard.ptd": b"weights" * 300, "empty": b""}


class Kept:
    """A cache, a directory of files to store, and the cache's reports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.cache = Cache(root / "cache", self.said.append)

    def store(self, key: str = KEY, files: dict[str, bytes] = FILES, step: str = "program") -> None:
        source = self.root / f"source-{key[:8]}-{len(files)}"
        for name, content in files.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(content)
        self.cache.store(step, key, source, list(files))

    def fetch(self, key: str = KEY, step: str = "program") -> dict[str, bytes] | None:
        target = self.root / "fetched"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        names = self.cache.fetch(step, key, target)
        found = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        assert sorted(found) == sorted(names or [])
        assert names is not None or not list(target.iterdir())  # no partial copies and no directories are left
        return None if names is None else found

    def record(self, key: str = KEY, step: str = "program") -> Path:
        return self.root / "cache/records" / step / key[:2] / key

    def blobs(self) -> list[Path]:
        return sorted(path for path in (self.root / "cache/blobs").rglob("*") if path.is_file())


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_what_was_stored_comes_back(kept: Kept) -> None:
    assert kept.fetch() is None
    kept.store()
    assert kept.fetch() == FILES
    assert kept.fetch(OTHER) is None
    assert kept.fetch(step="lower") is None
    assert kept.said == []


def test_outputs_have_the_permissions_that_the_user_wants(kept: Kept) -> None:
    kept.store()
    old = os.umask(0o027)
    try:
        kept.fetch()
    finally:
        os.umask(old)
    assert (kept.root / "fetched/net.pte").stat().st_mode & 0o777 == 0o640
    assert (kept.root / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("moves", [True, False], ids=["same file system", "another"])
def test_files_that_could_not_be_used_wait_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    cache, sha256 = Cache(tmp_path / "cache"), hashlib.sha256(b"arrived").hexdigest()
    (tmp_path / sha256).write_bytes(b"arrived")
    move = os.rename

    def across(source: Path, target: Path) -> None:
        if not moves and Path(source) == tmp_path / sha256:
            raise OSError(errno.EXDEV, "another file system")
        move(source, target)

    monkeypatch.setattr(os, "rename", across)
    cache.keep_blobs(tmp_path, [sha256])
    assert cache.fetch_blob(sha256, 7, tmp_path, "copy")
    assert (tmp_path / "copy").read_bytes() == b"arrived"
    assert not (tmp_path / sha256).exists()
    assert cache_upkeep.gc(cache, 1 << 30).blobs == 1


def test_an_edited_output_does_not_reach_the_cache(kept: Kept) -> None:
    kept.store()
    kept.fetch()
    with (kept.root / "fetched/net.pte").open("r+b") as file:
        file.write(b"edited in place")
    assert kept.fetch() == FILES


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "gone"])
def test_a_damaged_blob_is_dropped_reported_and_stored_again(kept: Kept, damage: str) -> None:
    kept.store()
    (blob,) = (path for path in kept.blobs() if path.read_bytes() == FILES["net.pte"])
    content = blob.read_bytes()
    changed = {"flipped": b"P" + content[1:], "cut": content[:-1], "longer": content + b"x"}
    blob.unlink()
    if damage in changed:
        blob.write_bytes(changed[damage])
    assert kept.fetch() is None
    assert len(kept.said) == 1
    assert "is removed: the blob" in kept.said[0]
    assert not blob.exists()
    kept.store()
    assert kept.fetch() == FILES
    assert len(kept.said) == 1


def test_storing_replaces_a_damaged_blob(kept: Kept) -> None:
    kept.store()
    for blob in kept.blobs():
        blob.write_bytes(b"damage")
    kept.store(OTHER)
    assert kept.fetch(OTHER) == FILES
    assert kept.fetch() == FILES


def test_every_flipped_byte_of_a_record_is_noticed(kept: Kept) -> None:
    kept.store()
    record = kept.record()
    whole = record.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))]
    for content in [*damaged, whole[:-1], whole + b"x", b"", whole[65:]]:
        record.write_bytes(content)
        assert kept.fetch() is None
        assert not record.exists()
    assert len(kept.said) == len(whole) + 4
    record.write_bytes(whole)
    assert kept.fetch() == FILES


def test_random_flips_in_blobs_never_give_a_wrong_byte(kept: Kept) -> None:
    kept.store()
    record, blobs = kept.record().read_bytes(), {path: path.read_bytes() for path in kept.blobs()}
    chance = random.Random(3)
    for _ in range(1000):
        path = chance.choice([path for path, content in blobs.items() if content])
        place = chance.randrange(len(blobs[path]))
        flipped = bytearray(blobs[path])
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        assert kept.fetch() is None
        path.write_bytes(blobs[path])
        kept.record().write_bytes(record)
    assert kept.fetch() == FILES


def test_a_record_under_another_name_is_not_used(kept: Kept) -> None:
    kept.store()
    for target in (kept.record(OTHER), kept.record(step="lower")):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept.record(), target)
    assert kept.fetch(OTHER) is None
    assert kept.fetch(step="lower") is None
    assert all("the record of something else" in line for line in kept.said)
    assert kept.fetch() == FILES


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"schema": "executorch-cache-record/v1"}'])
def test_a_file_with_a_right_digest_that_is_not_a_record_is_damage(kept: Kept, body: bytes) -> None:
    kept.store()
    kept.record().write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert kept.fetch() is None
    assert "it is not a record" in kept.said[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", name) for name in ("../escaped", "/escaped", "a/../../escaped", "a\0b", 5)),
        *(("sha256", sha256) for sha256 in (5, "", "/escaped", "A" * 64)),
    ],
)
def test_a_record_that_leads_out_of_the_directories_is_refused(kept: Kept, field: str, value: object) -> None:
    kept.store()
    content = json.loads(kept.record().read_bytes().partition(b"\n")[2])
    content["files"][0][field] = value
    body = json.dumps(content).encode()
    kept.record().write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert kept.fetch() is None
    assert not (kept.root / "escaped").exists()


def test_the_collector_removes_what_was_not_used_for_longest(kept: Kept) -> None:
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    for number, key in enumerate(keys):
        kept.store(key, {"own": bytes([number]) * 10_000, "shared": b"s" * 10_000})
        os.utime(kept.record(key), (number, number))
    kept.fetch(keys[0])  # the oldest is used again
    removed = cache_upkeep.gc(kept.cache, 32_000)  # space for two entries and their shared blobs
    assert (removed.records, removed.blobs) == (2, 2)
    assert [kept.fetch(key) is not None for key in keys] == [True, False, False, True]
    assert cache_upkeep.gc(kept.cache, 0).size == 0
    assert kept.blobs() == []


def test_the_collector_sweeps_what_killed_processes_left(kept: Kept) -> None:
    kept.store()
    half = kept.root / "cache/tmp/.etbuild-0123456789abcdef01"
    half.mkdir()
    (half / "half").write_bytes(b"half")
    os.utime(half, (0, 0))
    orphan = kept.root / "cache/blobs" / OTHER[:2] / OTHER
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"no record lists it")
    with kept.cache.building("program", OTHER):
        cache_upkeep.gc(kept.cache, 10**9)
    assert not half.exists()
    assert not orphan.exists()
    assert kept.fetch() == FILES
    cache_upkeep.gc(kept.cache, 10**9)
    assert [path.name for path in (kept.root / "cache/locks").iterdir()] == ["gc"]


def test_the_collector_waits_for_readers(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.store()
    reading, done = threading.Event(), threading.Event()
    original = entries.copy_out

    def slowly(*arguments: Any) -> None:
        reading.set()
        time.sleep(0.2)
        assert not done.is_set()
        original(*arguments)

    def collect() -> None:
        reading.wait()
        cache_upkeep.gc(Cache(kept.root / "cache"), 0)
        done.set()

    monkeypatch.setattr(entries, "copy_out", slowly)
    collector = threading.Thread(target=collect)
    collector.start()
    assert kept.fetch() == FILES
    collector.join()
    assert kept.fetch() is None


def test_one_process_builds_a_key_at_a_time_and_a_killed_one_lets_go(kept: Kept, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from etkit.local.cache.store import Cache\n"
        "with Cache(Path(sys.argv[1])).building('program', sys.argv[2]):\n    print('in', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter() -> None:
            with kept.cache.building("program", KEY):
                entered.set()

        waiting = threading.Thread(target=enter)
        waiting.start()
        assert not entered.wait(0.2)
        with kept.cache.building("program", OTHER):
            pass  # another key is not locked
        process.kill()
        assert entered.wait(30)
        waiting.join()


CROWD = """\
import random, shutil, sys
from pathlib import Path
from etkit.local.cache.store import Cache
from etkit.building import cache_upkeep
import hashlib

root, seed = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
own = root / f"own{seed}"
cache = Cache(root / "cache")
for turn in range(40):
    number = chance.randrange(6)
    key = hashlib.sha256(bytes([number])).hexdigest()
    content = {"a": bytes([number]) * 50_000, "b": b"shared" * 10_000}
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    action = chance.random()
    if action < 0.1:
        cache_upkeep.gc(cache, chance.randrange(400_000))
    elif cache.fetch("program", key, own) is not None:
        assert {path.name: path.read_bytes() for path in own.iterdir()} == content, "wrong bytes"
    else:
        with cache.building("program", key):
            for name, data in content.items():
                (own / name).write_bytes(data)
            cache.store("program", key, own, sorted(content))
"""


def test_many_processes_use_one_cache_and_some_are_killed(kept: Kept, tmp_path: Path) -> None:
    chance = random.Random(5)
    commands = [[sys.executable, "-c", CROWD, str(tmp_path), str(seed)] for seed in range(16)]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in chance.sample(crowd, 6):
        time.sleep(chance.random() / 4)
        process.send_signal(signal.SIGKILL)
    for process in crowd:
        said = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), said
        assert said == ""
    assert cache_upkeep.verify(kept.cache) == []


class Precious:
    """Files of a user that the cache must not touch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("letter", "12/notes", OTHER, f"{OTHER[:2]}/{OTHER}", f"program-{OTHER}"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("mine")
        self.before = self.state()

    def state(self) -> dict[str, tuple[str, int]]:
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path): (path.read_text(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def precious(tmp_path: Path) -> Precious:
    return Precious(tmp_path / "precious")


LINKS = {
    "blobs/zz": "",
    "blobs/00": "",
    f"blobs/{OTHER[:2]}": OTHER[:2],
    f"blobs/{KEY[:2]}/{KEY}": "letter",
    "records/linked": "",
    "records/lower": "",
    f"records/export/{OTHER[:2]}": OTHER[:2],
    f"records/method/{OTHER[:2]}/{OTHER}": OTHER,
    f"locks/program-{OTHER}": f"program-{OTHER}",
    "locks/letter": "letter",
    "tmp/.etbuild-0123456789abcdef01": "",
    "tmp/precious": "",
}


@pytest.mark.parametrize("work", ["info", "verify", "gc"])
def test_maintenance_follows_no_link(kept: Kept, precious: Precious, work: str) -> None:
    kept.store()
    for link, target in LINKS.items():
        path = kept.root / "cache" / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(precious.root / target)
        os.utime(path, (0, 0), follow_symlinks=False)
    kept.cache = Cache(kept.root / "cache", kept.said.append)
    if work == "gc":
        cache_upkeep.gc(kept.cache, 0)
    else:
        getattr(cache_upkeep, work)(kept.cache)
    assert precious.state() == precious.before
    assert work == "gc" or kept.fetch() == FILES


@pytest.mark.parametrize("folder", ["blobs", "records", "locks", "tmp"])
def test_a_cache_with_a_link_for_one_of_its_directories_is_refused(kept: Kept, precious: Precious, folder: str) -> None:
    shutil.rmtree(kept.root / "cache" / folder)
    (kept.root / "cache" / folder).symlink_to(precious.root)
    with pytest.raises(InputError, match=f"cannot be used as a cache: `{folder}` is a link"):
        Cache(kept.root / "cache")
    assert precious.state() == precious.before


def test_the_cache_itself_may_be_a_link(kept: Kept) -> None:
    kept.store()
    (kept.root / "link").symlink_to(kept.root / "cache")
    kept.cache = Cache(kept.root / "link", kept.said.append)
    assert kept.fetch() == FILES
    assert cache_upkeep.gc(kept.cache, 0).records == 1
    assert kept.said == []


def test_a_pipe_in_place_of_a_blob_does_not_hang(kept: Kept) -> None:
    kept.store()
    blob = kept.blobs()[0]
    blob.unlink()
    os.mkfifo(blob)
    assert kept.fetch() is None
    kept.store()
    assert kept.fetch() == FILES


def test_foreign_files_in_the_cache_stay(kept: Kept) -> None:
    kept.store()
    mine = ["blobs/ff/orphan", "blobs/README", "records/program/note", "tmp/half", "locks/mine", f"blobs/00/{OTHER}"]
    for name in mine:
        (kept.root / "cache" / name).parent.mkdir(exist_ok=True)
        (kept.root / "cache" / name).write_text("mine")
    cache_upkeep.verify(kept.cache)
    assert cache_upkeep.gc(kept.cache, 0).records == 1
    assert all((kept.root / "cache" / name).read_text() == "mine" for name in mine)


def test_a_link_in_the_place_of_a_copy_is_replaced(kept: Kept, precious: Precious) -> None:
    kept.store()
    target = kept.root / "target"
    target.mkdir()
    (target / "net.pte").symlink_to(precious.root / "letter")
    assert kept.cache.fetch("program", KEY, target) == list(FILES)
    assert (target / "net.pte").read_bytes() == FILES["net.pte"]
    assert precious.state() == precious.before
    assert kept.said == []


@pytest.mark.parametrize("obstacle", ["", "records"])
def test_a_directory_that_cannot_be_used(tmp_path: Path, obstacle: str) -> None:
    (tmp_path / "cache").mkdir()
    if obstacle:
        (tmp_path / "cache" / obstacle).write_text("in the way")
    else:
        (tmp_path / "cache").rmdir()
        (tmp_path / "cache").write_text("in the way")
    with pytest.raises(InputError, match="cannot be used as a cache") as error:
        Cache(tmp_path / "cache")
    assert "name a directory that you can write to with --cache-dir" in str(error.value)


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Within this context, this process has the rights of another user."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@as_root
@pytest.mark.parametrize("lock", [True, False], ids=["lock", "no lock"])
def test_a_cache_that_cannot_be_written_to_serves_hits(lock: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:  # pytest's directories are for their user only
        kept = Kept(Path(root))
        kept.store()
        target = kept.root / "target"
        target.mkdir()
        if not lock:
            (kept.root / "cache/locks/gc").unlink()
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)
        target.chmod(0o777)
        with nobody():
            cache = Cache(kept.root / "cache", kept.said.append)
            assert cache.fetch("program", KEY, target) == list(FILES)
            assert kept.said == []
            for key in (OTHER, KEY):
                with cache.building("program", key):
                    assert cache.fetch("lower", key, target) is None
                cache.store("program", key, target, list(FILES))
            assert kept.said == [f"{cache.directory}: nothing can be stored: Permission denied"]


@as_root
def test_a_directory_without_entries_that_cannot_be_written_to_is_no_cache() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        Path(root).chmod(0o755)
        with nobody(), pytest.raises(InputError, match="cannot be used as a cache: Permission denied"):
            Cache(Path(root))


@as_root
@pytest.mark.parametrize("folder", ["", "records"])
def test_a_cache_of_another_user_is_refused(kept: Kept, folder: str) -> None:
    (kept.root / "cache").chmod(0o1777)
    Cache(kept.root / "cache")
    os.chown(kept.root / "cache" / folder, NOBODY, -1)
    with pytest.raises(InputError, match="cannot be used as a cache: it belongs to the user nobody") as raised:
        Cache(kept.root / "cache")
    assert "`chown -R root " in str(raised.value)


@pytest.mark.parametrize(("mode", "who"), [(0o777, "every user"), (0o702, "every user"), (0o770, "the group shared")])
def test_a_cache_that_others_can_write_to_is_refused(
    kept: Kept, mode: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "etkit.local.cache.owners.grp.getgrgid", lambda number: types.SimpleNamespace(gr_name="shared", gr_mem=[])
    )
    (kept.root / "cache").chmod(mode)
    with pytest.raises(InputError, match=f"cannot be used as a cache: {who} can write to it") as raised:
        Cache(kept.root / "cache")
    hint = str(raised.value).partition("`")[2].partition("`")[0]
    subprocess.run(hint, shell=True, check=True)
    Cache(kept.root / "cache")


@pytest.mark.parametrize(
    ("group", "members", "fine"),
    [("alice", [], True), ("alice", ["alice"], True), ("alice", ["alice", "bob"], False), ("staff", [], False)],
)
def test_the_group_that_only_a_user_is_in_may_write(
    kept: Kept, group: str, members: list[str], fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a umask of 002, as for Debian's users, directories are writable by such a group."""
    found = types.SimpleNamespace(gr_name=group, gr_mem=members)
    user = types.SimpleNamespace(pw_name="alice", pw_gid=(kept.root / "cache").stat().st_gid)
    monkeypatch.setattr("etkit.local.cache.owners.grp.getgrgid", lambda number: found)
    monkeypatch.setattr("etkit.local.cache.owners.pwd.getpwuid", lambda number: user)
    (kept.root / "cache").chmod(0o775)
    with contextlib.nullcontext() if fine else pytest.raises(InputError, match=f"the group {group} can write"):
        Cache(kept.root / "cache")


def test_a_failed_store_leaves_no_record_and_does_not_fail_the_build(kept: Kept) -> None:
    shutil.rmtree(kept.root / "cache/tmp")
    (kept.root / "cache/tmp").write_text("in the way")
    kept.store()
    assert "nothing was stored" in kept.said[0]
    assert not kept.record().exists()
    assert kept.fetch() is None


def test_a_full_disk_does_not_fail_the_build(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    script = (
        "import resource, sys; from pathlib import Path; from etkit.local.cache.store import Cache\n"
        "root = Path(sys.argv[1]); resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        f"Cache(root / 'cache').store('program', '{KEY}', root, ['large'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "nothing was stored: File too large" in done.stderr
    assert list((tmp_path / "cache/tmp").iterdir()) == []


def test_verify_finds_what_a_hit_would_find(kept: Kept) -> None:
    kept.store()
    assert cache_upkeep.verify(kept.cache) == []
    kept.blobs()[0].write_bytes(b"damage")
    assert [line.partition(": ")[2][:8] for line in cache_upkeep.verify(kept.cache)] == ["the blob", "the reco"]
    assert cache_upkeep.verify(kept.cache) == []
    assert kept.fetch() is None


def test_the_verbs(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    kept.store()
    where = ["--cache-dir", str(kept.root / "cache")]
    assert main.main(["cache", "info", *where, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["records"] == {"program": 1}
    assert info["blobs"] == 3
    assert main.main(["cache", "info", *where]) == 0
    assert "program records  1" in capsys.readouterr().out
    assert main.main(["cache", "verify", *where]) == 0
    assert capsys.readouterr().out == "no damage\n"
    kept.blobs()[0].write_bytes(b"damage")
    assert main.main(["cache", "verify", *where]) == 1
    assert "was damaged and is removed" in capsys.readouterr().out
    assert main.main(["cache", "gc", *where, "--max-size", "1.5 kB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"] <= 1500
    assert main.main(["cache", "gc", *where, "--max-size", "lots"]) == 2
    assert "--max-size lots: not a size\n    write for example 500MB or 10GB" in capsys.readouterr().err
