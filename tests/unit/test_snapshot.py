"""Data that training writes while a build reads it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from etbuild.errors import BuildError
from etbuild.key.declared import Inputs
from etkit.local import snapshot


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    (tmp_path / "data").mkdir()
    for name in ("first.pt", "second.pt"):
        (tmp_path / "data" / name).write_text("1")
    return Inputs(roots=[tmp_path / "data"])


NAMES = ["first.pt", "second.pt"]


def test_what_was_written_a_short_time_ago_is_copied(inputs: Inputs, tmp_path: Path) -> None:
    copies = snapshot.copied(inputs, NAMES, tmp_path / "copies")
    assert copies is not None
    (tmp_path / "data/first.pt").write_text("2")
    assert [copies.find_data(name, ()).read_text() for name in NAMES] == ["1", "1"]
    assert {copies.find_data(name, ()).name for name in NAMES} == {*NAMES}


def test_what_was_written_long_ago_is_not(inputs: Inputs, tmp_path: Path) -> None:
    before = time.time() - 3600
    os.utime(tmp_path / "data/second.pt", (before, before))
    copies = snapshot.copied(inputs, NAMES, tmp_path / "copies")
    assert copies is not None
    assert {*copies.data} == {"first.pt"}
    os.utime(tmp_path / "data/first.pt", (before, before))
    assert snapshot.copied(inputs, NAMES, tmp_path / "copies") is None


def test_all_copies_are_of_one_moment(inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes after its copy was made is copied again, with all others."""
    copy, rounds = os.copy_file_range, iter((2, 3))

    def writing(*arguments: int) -> int:
        count = copy(*arguments)
        if value := next(rounds, None):
            for name in NAMES:
                (tmp_path / "data" / name).write_text(str(value) * value)
        return count

    monkeypatch.setattr(os, "copy_file_range", writing)
    copies = snapshot.copied(inputs, NAMES, tmp_path / "copies")
    assert copies is not None
    assert [copies.find_data(name, ()).read_text() for name in NAMES] == ["333", "333"]


def test_what_changes_faster_than_it_is_copied_is_refused(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, sizes = os.copy_file_range, iter(range(2, 1000))

    def writing(*arguments: int) -> int:
        count = copy(*arguments)
        (tmp_path / "data/second.pt").write_text("1" * next(sizes))
        return count

    monkeypatch.setattr(os, "copy_file_range", writing)
    monkeypatch.setattr(snapshot, "_QUIET_SECONDS", 0)
    with pytest.raises(BuildError, match=r"`second\.pt` changes faster than it can be copied"):
        snapshot.copied(inputs, NAMES, tmp_path / "copies")


def test_where_there_is_no_room_the_files_themselves_are_read(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    assert snapshot.copied(inputs, NAMES, tmp_path / "copies") is None
