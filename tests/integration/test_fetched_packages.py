"""The builder of the packages, with real pip and pex and each Python that there is. A small wheel stands for torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"


def wheel(file: Path, module: str, text: str) -> str:
    """Writes a wheel with one module, and returns its pin."""
    name, version = file.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    files = {module: text, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(member), content)
        archive.writestr(
            zipfile.ZipInfo(f"{info}/RECORD"), "".join(f"{each},,\n" for each in (*files, f"{info}/RECORD"))
        )
    return f"{name}=={version} {{}}\\\n    --hash=sha256:{sha256(file.read_bytes()).hexdigest()}\n"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_packages_are_fetched_for_each_python(tmp_path: Path, version: str) -> None:
    here = "{}.{}".format(*sys.version_info)
    python = sys.executable if version == here else shutil.which(f"python{version}")
    if not python or subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {version} with its module venv")
    torch = wheel(tmp_path / "torch-1.0-py3-none-any.whl", "torch/__init__.py", "VALUE = 1\n").format("")
    newer = wheel(tmp_path / "newer-1.0-py3-none-any.whl", "newer.py", "VALUE = '\\d'\n")  # of which Python 3.12 warns
    (tmp_path / "own.lock").write_text(torch + newer.format("; python_full_version >= '3.12' "))
    (tmp_path / "cuda.lock").write_text("# nothing\n")
    command: list[str | Path] = [
        python,
        TOOLCHAIN / "build_packages.py",
        "--requirements",
        "own.lock",
        "--cuda",
        "cuda.lock",
        "--build",
    ]
    command += [TOOLCHAIN / "requirements-build.lock", "--out", "out", "--", f"--find-links={tmp_path}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert f"downloads the packages for Python {version} with pip, about 0.5 GB, " in done.stderr
    file = tmp_path / "out/packages.pex"
    assert file.read_bytes().startswith(f"#!/usr/bin/env python{version}\n".encode())
    program = "import importlib.util, torch; print(torch.VALUE, bool(importlib.util.find_spec('newer')))"
    runs: list[list[str | Path]] = [
        [python, file],
        [tmp_path / "out/venv/bin/python"],
    ]  # as Buck2 starts the packages, and as Bazel does
    environment = {**os.environ, "PEX_ROOT": str(tmp_path / "pex_root"), "PEX_INTERPRETER": "1"}
    for run in runs:
        said = subprocess.run([*run, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout
        assert said == f"1 {version != '3.11'}\n"
    assert not (tmp_path / "out/work").exists()
