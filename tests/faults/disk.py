"""A small disk, for tests that fill it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


class Disk:
    """A separate file system."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()

    def mount(self, size: int, *, inodes: int = 0) -> None:
        """Mounts it with this size in bytes and, unless it is 0, this maximum number of files."""
        self.unmount()
        options = f"size={size},nr_inodes={inodes}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.place], capture_output=True)
        if done.returncode:
            pytest.skip("file systems cannot be mounted here")

    def make_read_only(self) -> None:
        """Makes the file system read-only."""
        subprocess.run(["mount", "-o", "remount,ro", self.place], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--quiet", self.place], check=False, capture_output=True)
