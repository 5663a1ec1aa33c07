"""Applies the patches of `upstream/` to copies of installed files, and lets a process import these.

ExecuTorch's repository is the package `executorch` of the wheel, and PyTorch's repository has the package `torch`. So
a path such as `exir/program/_program.py` of a patch is `executorch/exir/program/_program.py` of the environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from pathlib import Path

UPSTREAM = Path(__file__).parents[2] / "upstream"
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))

# Python runs `sitecustomize` when it starts, in child processes too.
_SITECUSTOMIZE = '''\
import importlib.machinery, importlib.util, pathlib, sys

PATCHED, INSTALLED = pathlib.Path({patched!r}), pathlib.Path({installed!r})


class PatchedFiles:
    """Imports a module from its patched file, if there is one."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not spec.has_location or not pathlib.Path(spec.origin).is_relative_to(INSTALLED):
            return spec
        file = PATCHED / pathlib.Path(spec.origin).relative_to(INSTALLED)
        if not file.is_file():
            return spec
        return importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=spec.submodule_search_locations
        )


sys.meta_path.insert(0, PatchedFiles)
'''


def patches() -> list[Path]:
    """Returns the patches, in the order of their names."""
    return sorted(UPSTREAM.glob("*.patch"))


def paths(patch: Path) -> list[str]:
    """Returns the files that a patch changes or adds, as its repository names them."""
    return re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text("utf-8"), re.MULTILINE)


def test_paths(patch: Path) -> list[str]:
    """Returns the tests that a patch adds."""
    return [path for path in paths(patch) if Path(path).name.startswith("test_")]


def root(patch: Path) -> str:
    """Returns the folder of the environment that is the root of the patch's repository."""
    of_pytorch = any(path.startswith("torch/") for path in paths(patch))
    return "" if of_pytorch else "executorch"


def apply(chosen: Iterable[Path], directory: Path, fuzz: int = 0) -> None:
    """Copies the files that patches change to `directory`, and applies the patches there.

    Args:
        chosen: The patches, in the order in which they are applied.
        directory: An existing folder.
        fuzz: How many lines of context may differ, because of another patch.

    Raises:
        subprocess.CalledProcessError: A patch does not apply. `stdout` says where.
    """
    for patch in chosen:
        for path in paths(patch):
            installed, copy = SITE_PACKAGES / root(patch) / path, directory / root(patch) / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            if installed.exists() and not copy.exists():
                shutil.copyfile(installed, copy)
        command = ["patch", "--strip=1", "--batch", "--forward", f"--fuzz={fuzz}", "--no-backup-if-mismatch"]
        subprocess.run(
            [*command, f"--input={patch}"], cwd=directory / root(patch), check=True, capture_output=True, text=True
        )


def environment(directory: Path) -> dict[str, str]:
    """Returns the environment variables of a process that imports the patched files of `directory`."""
    customized = directory / "sitecustomize"
    customized.mkdir(exist_ok=True)
    text = _SITECUSTOMIZE.format(patched=str(directory), installed=str(SITE_PACKAGES))
    (customized / "sitecustomize.py").write_text(text, "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(customized), os.environ.get("PYTHONPATH", "")])}
