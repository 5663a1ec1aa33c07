"""What tests need for a machine with another processor: ExecuTorch's wheel for it, a compiler and an emulator."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]


def need_tools() -> None:
    """Skips the test if the compiler or the emulator is missing."""
    for tool in (COMPILER, EMULATOR[0]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static")


def wheel(directory: Path) -> Path:
    """Extracts the headers and the libraries of ExecuTorch's wheel for aarch64. Skips the test if a tool is missing.

    Args:
        directory: An empty directory.

    Returns:
        The directory with `include` and `lib`.
    """
    need_tools()
    python = ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
    options = ["--only-binary=:all:", "--platform=manylinux_2_28_aarch64", "--no-deps", "--dest", str(directory)]
    name = f"executorch=={importlib.metadata.version('executorch')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", *python, *options, name]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("ExecuTorch's wheel for aarch64 cannot be downloaded")
    [path] = directory.glob("executorch-*.whl")
    with zipfile.ZipFile(path) as file:
        wanted = [name for name in file.namelist() if name.startswith(("executorch/include/", "executorch/lib/lib"))]
        file.extractall(directory, wanted)
    path.unlink()
    return directory / "executorch"
