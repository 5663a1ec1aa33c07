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

from etbuild.errors import BuildError, InputError
from etbuild.files.scratch import HIDDEN, Scratch, sweep, temporary, write_error
from etbuild.publishing import artifacts
from etkit.local.cache.store import Cache

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
    (precious / "file").write_text("mine")
    place = tmp_path / "place"
    place.mkdir()
    (place / ".etbuild-00000000aaaaaaaa").symlink_to(precious)
    (place / ".etbuild-11111111aaaaaaaa").write_text("a file")
    for name in (".etbuild", ".etbuild-notes", "etbuild-again", ".etbuild-3333aaaa", "x.etbuild-33333333aaaaaaaa"):
        (place / name).mkdir()
    before = sorted(place.rglob("*"))
    for path in place.iterdir():
        make_old(path)
    with Scratch(place, HIDDEN):
        pass
    assert sorted(place.rglob("*")) == before
    assert (precious / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directories_of_another_user_stay(tmp_path: Path) -> None:
    left = tmp_path / ".etbuild-0123456789abcdef01"
    left.mkdir()
    os.chown(left, 65534, 65534)
    make_old(left)
    sweep(tmp_path)
    assert left.exists()


def test_temporary_directories_are_swept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for word in ("again", "worker", "index"):
        left = tmp_path / f"etbuild-{word}-0123456789abcdef01"
        left.mkdir()
        (left / "file").write_text("")
        make_old(left)
    with temporary("again") as scratch:
        assert list(tmp_path.iterdir()) == [scratch.path]
    assert list(tmp_path.iterdir()) == []


def test_directories_of_another_machine_stay_for_a_week(tmp_path: Path) -> None:
    """A network file system may grant the lock to both machines."""
    left = [tmp_path / ".etbuild-0123456789abcdef01", tmp_path / "etbuild-again-0123456789abcdef01"]
    for path in left:
        path.mkdir()
    sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == left
    for path in left:
        make_old(path)
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


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
    left = tmp_path / "etbuild-again-0123456789abcdef01"
    left.mkdir()
    sweep(tmp_path)
    assert left.exists()
    make_old(left)
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "file"]


CROWD = """\
import sys
from pathlib import Path
from etbuild.files.scratch import HIDDEN, Scratch

place = Path(sys.argv[1])
for turn in range(200):
    with Scratch(place, HIDDEN) as scratch:
        (scratch.path / "file").write_text("x")
        (scratch.path / "file").replace(place / f"moved{sys.argv[2]}")
        (scratch.path / "file").write_text("x")
        assert (scratch.path / "file").read_text() == "x"
"""


def test_many_processes_remove_only_files_of_dead_processes(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", CROWD, str(tmp_path), str(number)] for number in range(12)]
    crowd = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    chance = random.Random(3)
    for process in crowd[::2]:
        time.sleep(chance.random() / 5)
        process.kill()
    for process in crowd:
        said = process.communicate()[1]
        assert (process.returncode, said) in ((0, ""), (-signal.SIGKILL, ""))
    sweep(tmp_path)
    assert {path.name[:5] for path in tmp_path.iterdir()} <= {"moved"}


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
