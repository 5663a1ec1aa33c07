"""The temporary files of a process are removed when it ends. Those of other processes stay."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from etbuild.cache.store import Cache
from etbuild.errors import BuildError, InputError
from etbuild.files import artifacts
from etbuild.files.directories import Folder
from etbuild.files.scratch import HIDDEN, Scratch, sweep_files, temporary, unfinished, write_error

HOLD = """\
import os, sys, time
from pathlib import Path
from etbuild.files.scratch import HIDDEN, Scratch
with Scratch(Path(sys.argv[1]), HIDDEN) as scratch:
    (scratch.path / "deep/er").mkdir(parents=True)
    (scratch.path / "deep/er/file").write_bytes(b"x" * 1000)
    if sys.argv[2:]:
        (scratch.path / "link").symlink_to(sys.argv[2])
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


def hold(parent: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Starts a process that makes a directory and then forks a child."""
    command = [sys.executable, "-c", HOLD, str(parent), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str], child: int) -> None:
    process.kill()
    subprocess.run(["kill", "-9", str(child)], check=True)
    process.communicate()  # returns when both have closed the pipe


def make_old(path: Path) -> None:
    """Sets the times of a file to eight days ago."""
    then = time.time() - 8 * 24 * 3600
    os.utime(path, (then, then), follow_symlinks=False)


def test_temporary_directories_are_removed(tmp_path: Path) -> None:
    with Scratch(tmp_path, HIDDEN) as scratch:
        (scratch.path / "directory").mkdir()
        (scratch.path / "directory/file").write_text("")
        assert scratch.path.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_directory_stays_while_its_process_or_a_fork_of_it_lives(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    place = tmp_path / "place"
    place.mkdir()
    process, child = hold(place, str(tmp_path / "precious"))
    (held,) = place.iterdir()
    with Scratch(place, HIDDEN):
        assert (held / "deep/er/file").exists()
    process.kill()
    process.wait()
    with Scratch(place, HIDDEN):  # the fork may still write to it
        assert (held / "deep/er/file").exists()
    end(process, child)
    with Scratch(place, HIDDEN) as scratch:
        assert list(place.iterdir()) == [scratch.path]
    assert (tmp_path / "precious/file").read_text() == "mine"


def test_directories_released_meanwhile_are_swept_at_the_end(tmp_path: Path) -> None:
    process, child = hold(tmp_path)
    with Scratch(tmp_path, HIDDEN):
        end(process, child)
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_stay(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "made-by-etbuild").write_text("")
    (precious / "file").write_text("mine")
    place = tmp_path / "place"
    place.mkdir()
    (place / ".etbuild-0000aaaa").symlink_to(precious)
    (place / ".etbuild-1111aaaa").write_text("a file")
    (place / ".etbuild-2222aaaa").mkdir()
    (place / ".etbuild-2222aaaa/without").write_text("a marker")
    for name in (".etbuild", ".etbuild-notes", "etbuild-again", "x.etbuild-3333aaaa"):
        (place / name).mkdir()
        (place / name / "made-by-etbuild").write_text("")
    (place / ".etbuild-4444aaaa").mkdir()
    (place / ".etbuild-4444aaaa/made-by-etbuild").symlink_to(precious / "file")
    before = sorted(place.rglob("*"))
    for path in place.iterdir():
        make_old(path)
    with Scratch(place, HIDDEN):
        pass
    assert sorted(place.rglob("*")) == before
    assert (precious / "file").read_text() == "mine"


def test_temporary_directories_are_swept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for word in ("again", "worker", "index"):
        left = tmp_path / f"etbuild-{word}-0123abcd"
        left.mkdir()
        (left / "made-by-etbuild").write_text("")
        (left / "file").write_text("")
        make_old(left)
    with temporary("again") as scratch:
        assert list(tmp_path.iterdir()) == [scratch.path]
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_file_stays_while_it_is_written(tmp_path: Path) -> None:
    with Folder.at(tmp_path) as folder, unfinished(folder) as (file, name):
        sweep_files(folder)
        file.write(b"whole")
        file.flush()
        assert (tmp_path / name).read_bytes() == b"whole"
        folder.move(name, folder, "moved")
    (tmp_path / "tmp0123abcd").write_text("of a process that was killed")
    (tmp_path / "tmp4567abcd").symlink_to(tmp_path / "moved")
    (tmp_path / "other").write_text("not ours")
    for path in tmp_path.iterdir():
        make_old(path)
    with Folder.at(tmp_path) as folder:
        sweep_files(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "other", "tmp4567abcd"]


def test_directories_of_another_machine_stay_for_a_week(tmp_path: Path) -> None:
    """A network file system may grant the lock to both machines."""
    names = [".etbuild-0123456789abcdef", ".etbuild-01234567", "etbuild-again-0123456789abcdef"]
    (tmp_path / "tmp").mkdir()
    unfinished_files = [tmp_path / "tmp" / name for name in ("tmp0123456789abcdef", "tmp01234567")]
    for name in names:
        (tmp_path / name).mkdir()
    for path in (*(tmp_path / name / "made-by-etbuild" for name in names[:2]), *unfinished_files):
        path.write_text("")
    before = sorted(tmp_path.rglob("*"))

    def sweep() -> list[Path]:
        with Scratch(tmp_path, HIDDEN), Folder.at(tmp_path / "tmp") as tmp:
            sweep_files(tmp)
        return sorted(tmp_path.rglob("*"))

    assert sweep() == before
    for path in before:
        make_old(path)
    assert sweep() == [tmp_path / "tmp"]


def test_a_directory_of_any_depth_is_swept(tmp_path: Path) -> None:
    process, child = hold(tmp_path)
    (held,) = tmp_path.iterdir()
    descriptor = os.open(held, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=descriptor)
        os.mkdir("e", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)
    end(process, child)
    try:
        with Scratch(tmp_path, HIDDEN) as scratch:
            assert list(tmp_path.iterdir()) == [scratch.path]
    finally:
        subprocess.run(["rm", "-rf", held], check=True)  # pytest could not remove it


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_of_temporary_files_that_cannot_be_listed(tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o1733)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            with Scratch(place, HIDDEN) as scratch:
                (scratch.path / "deep/er").mkdir(parents=True)
            code = 0 if not scratch.path.exists() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    why = re.escape(f"the file system has no locks ({os.strerror(number)})")
    with pytest.raises(BuildError, match=f"cannot be locked against other builds: {why}"), artifacts.staging(tmp_path):
        pytest.fail("work was begun")
    with pytest.raises(InputError, match=f"cannot be used as a cache: {why}"):
        Cache(tmp_path / "cache")
    with temporary("again"):
        artifacts.replace(tmp_path / "file", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "file"]


CROWD = """\
import sys
from pathlib import Path
from etbuild.files.directories import Folder
from etbuild.files.scratch import HIDDEN, Scratch, sweep_files, unfinished

place = Path(sys.argv[1])
for turn in range(200):
    with Scratch(place, HIDDEN) as scratch, Folder.at(place / "tmp") as tmp:
        (scratch.path / "file").write_text("x")
        sweep_files(tmp)
        with unfinished(tmp) as (file, name):
            tmp.move(name, tmp, f"moved{sys.argv[2]}")
        assert (scratch.path / "file").read_text() == "x"
"""


def test_many_processes_remove_only_files_of_dead_processes(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    commands = [[sys.executable, "-c", CROWD, str(tmp_path), str(number)] for number in range(12)]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    chance = random.Random(3)
    for process in crowd[::2]:
        time.sleep(chance.random() / 5)
        process.kill()
    for process in crowd:
        said = process.communicate()[1]
        assert (process.returncode, said) in ((0, ""), (-signal.SIGKILL, ""))
    with Scratch(tmp_path, HIDDEN), Folder.at(tmp_path / "tmp") as tmp:
        sweep_files(tmp)
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert {path.name[:5] for path in (tmp_path / "tmp").iterdir()} <= {"moved"}


@pytest.mark.parametrize("kind", ["a file", "a link to nothing"])
def test_something_else_in_the_place_of_a_directory_is_told(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "out"
    if kind == "a file":
        place.touch()
    else:
        place.symlink_to("nowhere")
    with pytest.raises(FileExistsError) as raised:
        place.mkdir(exist_ok=True)
    assert f"out: is {kind}, but has to be a directory" in str(write_error(place, raised.value))
