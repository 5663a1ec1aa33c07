"""Full disks, failing disks, read-only directories, no file descriptors, and two builds in one directory."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etbuild.errors import BuildError, InputError
from etkit.building import cache_upkeep
from etkit.local.cache.store import Cache

from .disk import Disk
from .injected import tree
from .projects import write_project

KEY = hashlib.sha256(b"one").hexdigest()
FILES = {"net.pte": b"p" * 50_000, "net.weights.ptd": b"w" * 90_000, "net.index.json": b"{}"}


class Kept:
    """A cache with one large entry."""

    def __init__(self, root: Path, place: Path) -> None:
        self.source = root / "source"
        self.source.mkdir(exist_ok=True)
        for name, content in FILES.items():
            (self.source / name).write_bytes(content)
        self.said: list[str] = []
        self.cache = Cache(place, self.said.append)

    def store(self) -> None:
        self.cache.store("program", KEY, self.source, list(FILES))

    def fetch(self, directory: Path) -> dict[str, bytes] | None:
        names = self.cache.fetch("program", KEY, directory)
        assert tree(directory).keys() == set(names or ())
        return None if names is None else tree(directory)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path, tmp_path / "cache")
    kept.store()
    return kept


def test_a_full_destination_is_named_and_loses_no_entry(kept: Kept, disk: Disk, tmp_path: Path) -> None:
    for size in (4096, 8192, 40_960, 49_152, 57_344, 131_072):
        disk.mount(size)
        with pytest.raises(BuildError, match="cannot write the file: No space left on device") as error:
            kept.fetch(disk.place)
        assert f"is there room in {disk.place}?" in str(error.value)
        assert tree(disk.place) == {}
    disk.mount(1 << 20)
    assert kept.fetch(disk.place) == FILES
    assert kept.said == []
    (tmp_path / "out").mkdir()
    assert kept.fetch(tmp_path / "out") == FILES


def test_a_destination_without_room_for_files(kept: Kept, disk: Disk, tmp_path: Path) -> None:
    disk.mount(1 << 20, inodes=3)
    with pytest.raises(BuildError, match="No space left on device"):
        kept.fetch(disk.place)
    (tmp_path / "out").mkdir()
    assert kept.fetch(tmp_path / "out") == FILES


def test_a_limit_of_file_sizes_loses_no_entry(kept: Kept, tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from etkit.local.cache.store import Cache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        f"Cache(Path(sys.argv[1])).fetch('program', '{KEY}', Path(sys.argv[2]))\n"
    )
    (tmp_path / "out").mkdir()
    arguments = [str(kept.cache.directory), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert "BuildError: net.weights.ptd: cannot write the file: File too large" in done.stderr
    assert kept.fetch(tmp_path / "out") == FILES


def test_a_read_only_destination_loses_no_entry(kept: Kept, disk: Disk, tmp_path: Path) -> None:
    disk.mount(1 << 20)
    disk.make_read_only()
    with pytest.raises(BuildError, match="cannot write the file: Read-only file system"):
        kept.fetch(disk.place)
    (tmp_path / "out").mkdir()
    assert kept.fetch(tmp_path / "out") == FILES


def test_a_full_cache_keeps_what_it_has(disk: Disk, tmp_path: Path) -> None:
    for size in (4096, 57_344, 90_112, 151_552, 1 << 20):
        disk.mount(size)
        kept = Kept(tmp_path, disk.place)
        kept.store()
        assert not kept.said or "nothing was stored: No space left on device" in kept.said[0]
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        (tmp_path / "out").mkdir()
        assert kept.fetch(tmp_path / "out") == (None if kept.said else FILES)
        assert cache_upkeep.verify(kept.cache) == []
        assert list((disk.place / "tmp").iterdir()) == []
        assert cache_upkeep.gc(kept.cache, 0).size == 0  # freeing space needs no space itself
    assert kept.said == []


def test_a_full_cache_lets_a_build_go_on_without_a_lock(disk: Disk, tmp_path: Path) -> None:
    disk.mount(1 << 20, inodes=6)  # for the directories and the lock of garbage collection
    kept = Kept(tmp_path, disk.place)
    with kept.cache.building("program", KEY):
        pass
    assert "cannot lock it: No space left on device" in kept.said[0]


def test_a_read_only_cache_is_refused_in_words(disk: Disk, tmp_path: Path) -> None:
    disk.mount(1 << 20)
    disk.make_read_only()
    with pytest.raises(InputError, match="cannot be used as a cache: Read-only file system"):
        Cache(disk.place)


def test_a_blob_that_cannot_be_read_stays(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    blob = max((tmp_path / "cache/blobs").rglob("?" * 64), key=lambda path: path.stat().st_size)
    # A real file that returns EIO, since nothing is mapped at the beginning of a process's memory.
    if subprocess.run(["mount", "--bind", f"/proc/{os.getpid()}/mem", blob], capture_output=True).returncode:
        pytest.skip("files cannot be mounted here")
    try:
        assert kept.fetch(tmp_path / "out") is None
        found = cache_upkeep.verify(kept.cache)
    finally:
        subprocess.run(["umount", blob], check=True)
    reason = os.strerror(errno.EIO)
    assert kept.said[0].endswith(f"cannot be read and is kept: a blob: {reason}")
    assert [line.endswith(f"cannot be read and is kept: {reason}") for line in found] == [True]
    assert kept.fetch(tmp_path / "out") == FILES


def test_no_file_descriptors_lose_no_entry(kept: Kept, tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(1000) if not Path(f"/proc/self/fd/{number}").exists()]
    outcomes = set()
    for more in range(12):
        out = tmp_path / f"out{more}"
        out.mkdir()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], limit[1]))
        try:
            outcome = "right" if kept.cache.fetch("program", KEY, out) else "missed"
        except BuildError:  # the copy could not be opened
            outcome = "missed"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert tree(out) == (FILES if outcome == "right" else {})
        outcomes.add(outcome)
    assert outcomes == {"right", "missed"}
    assert kept.fetch(tmp_path / "out0") == FILES
    assert not any("dropped" in line for line in kept.said)


CROWD = """\
import json, random, sys
from pathlib import Path
from etbuild.publishing import artifacts as files

out, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
chance = random.Random(number)
for turn in range(10):
    content = f"{number} {turn}".encode() * 1000
    tags = chance.sample(["a", "b", "c.d", "e/1"], 2)
    with files.staging(out) as staged:
        names = [f"{name}.pte", *(f"{name}.{tag}.ptd" for tag in tags if tag != "c.d")]
        made = [files.write(staged, each, "x", lambda file: file.write(content)) for each in names]
        index = json.dumps({"artifacts": [artifact.facts() for artifact in made]}).encode()
        made.append(files.write(staged, f"{name}.index.json", "index", lambda file: file.write(index)))
        files.publish(made, out)
"""


def test_builds_into_one_directory_take_turns(tmp_path: Path) -> None:
    arguments = [(name, str(number)) for number, name in enumerate(["one", "two"] * 3)]
    crowd = [
        subprocess.Popen([sys.executable, "-c", CROWD, str(tmp_path), *each], stderr=subprocess.PIPE, text=True)
        for each in arguments
    ]
    for process in crowd:
        assert process.communicate()[1] == ""
    found = tree(tmp_path)
    assert not [name for name in found if name.startswith(".")]
    for name in ("one", "two"):
        listed = json.loads(found.pop(f"{name}.index.json"))["artifacts"]
        assert {one["sha256"] for one in listed} == {
            hashlib.sha256(found.pop(one["file"])).hexdigest() for one in listed
        }
    assert found == {}  # files that no index lists


SWALLOW = """\
import os, signal, sys
from etbuild.cli.main import main
from etbuild.processes.ending import Interrupts

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
interrupts = Interrupts()
interrupts.install()

def restart(limit, warm):
    try:
        os.kill(os.getpid(), int(sys.argv[2]))
    except KeyboardInterrupt:
        raise ImportError("as PyTorch does while it is imported") from None

sys.exit(main(["build", sys.argv[1], "--no-cache", "-o", sys.argv[3]], restart, interrupts=interrupts))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupt_is_reported_even_if_a_library_turns_it_into_an_error(
    tmp_path: Path, number: signal.Signals
) -> None:
    manifest = write_project(tmp_path, 4)
    arguments = [str(manifest), str(int(number)), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", SWALLOW, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "etbuild: interrupted\n")
