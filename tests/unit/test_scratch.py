"""What a process makes for itself goes with it, and what others have stays."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from etbuild.folders import Folder
from etbuild.scratch import HIDDEN, Scratch, sweep_files, temporary, unfinished

HOLD = """\
import os, sys, time
from pathlib import Path
from etbuild.scratch import HIDDEN, Scratch
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
    """A process that has made a directory, and the child that it has forked since."""
    command = [sys.executable, "-c", HOLD, str(parent), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def end(process: subprocess.Popen[str], child: int) -> None:
    process.kill()
    subprocess.run(["kill", "-9", str(child)], check=True)
    process.communicate()  # ends when both have closed it


def test_what_is_made_goes(tmp_path: Path) -> None:
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
    with Scratch(place, HIDDEN):  # the fork may still write there
        assert (held / "deep/er/file").exists()
    end(process, child)
    with Scratch(place, HIDDEN) as scratch:
        assert list(place.iterdir()) == [scratch.path]
    assert (tmp_path / "precious/file").read_text() == "mine"


def test_what_is_let_go_meanwhile_is_swept_at_the_end(tmp_path: Path) -> None:
    process, child = hold(tmp_path)
    with Scratch(tmp_path, HIDDEN):
        end(process, child)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
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
    with Folder.at(tmp_path) as folder:
        sweep_files(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "other", "tmp4567abcd"]


CROWD = """\
import sys
from pathlib import Path
from etbuild.folders import Folder
from etbuild.scratch import HIDDEN, Scratch, sweep_files, unfinished

place = Path(sys.argv[1])
for turn in range(200):
    with Scratch(place, HIDDEN) as scratch, Folder.at(place / "tmp") as tmp:
        (scratch.path / "file").write_text("x")
        sweep_files(tmp)
        with unfinished(tmp) as (file, name):
            tmp.move(name, tmp, f"moved{sys.argv[2]}")
        assert (scratch.path / "file").read_text() == "x"
"""


def test_a_crowd_sweeps_what_the_dead_left_and_nothing_of_the_living(tmp_path: Path) -> None:
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
