"""The README shows what a build says today."""

from __future__ import annotations

from pathlib import Path

from tools import write_error_picture


def test_the_picture_is_current(tmp_path: Path) -> None:
    drawn = write_error_picture.draw(write_error_picture.message(tmp_path))
    assert write_error_picture.PICTURE.read_text("utf-8") == drawn, "`make error-picture` draws it again"
