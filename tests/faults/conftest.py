"""Fixtures that several files of these tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .disk import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "disk")
    yield disk
    disk.unmount()
