"""Checks what pip installs: `make check-wheel`, or `make check-wheel WHOLE=1` with all packages from the package index.

    python -m tools.check_wheel --twine PYTHON [--whole]

1. `twine check --strict` reads the metadata of the wheel and of the sdist, and renders the README as an index does.
2. pip installs the wheel from a folder as its only index (`--no-index --find-links`) into a new environment with
   nothing else. Without `--whole`, other packages are those of this environment.
3. There, README's program is built, and must have the bytes that the README shows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from etbuild.extras import DISTRIBUTION
from tools import build_wheel
from tools.build_wheel import ROOT

CPU_INDEX = re.compile(r"--index-url (\S+)")
_BLOCK = r"```{}\n(.*?)```"
_DIGEST = re.compile(r"net\.pte +\S+ k?B +([0-9a-f]{16})")


def run(command: Sequence[str | Path], directory: Path) -> str:
    """Runs a command without the variables that would let Python find this checkout. Returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["ETBUILD_NO_SERVER"] = "1"
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(wheel: Path, directory: Path, *, whole: bool) -> Path:
    """Makes an environment with the wheel. Returns the path of its Python.

    Args:
        wheel: The wheel.
        directory: An existing directory for the environment.
        whole: Whether the other packages come from the package index.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], directory)
    python = directory / "venv/bin/python"
    if whole:
        readme = (ROOT / "README.md").read_text("utf-8")
        found = CPU_INDEX.search(readme)
        assert found is not None, "README names the index of PyTorch's CPU build"
        torch = re.search(r"torch==\S+", readme)
        assert torch is not None, "README names the version of PyTorch"
        run([*pip, "--python", python, "install", torch[0], "--index-url", found[1]], directory)
        run([*pip, "--python", python, "install", wheel], directory)
        return python
    folder = wheel.parent
    run(
        [*pip, "--python", python, "install", "--no-index", "--find-links", folder, "--no-deps", DISTRIBUTION],
        directory,
    )
    place = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], directory).strip()
    Path(place, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def build_program(python: Path, directory: Path) -> str:
    """Builds README's program. Returns what the build prints."""
    readme = (ROOT / "README.md").read_text("utf-8")
    for language, name in (("python", "model.py"), ("yaml", "net.yaml")):
        found = re.search(_BLOCK.format(language), readme, re.DOTALL)
        assert found is not None, f"README has a block in {language}"
        (directory / name).write_text(found[1])
    return run([python.with_name("etbuild"), "build", "net.yaml", "-o", "out", "--no-cache"], directory)


def main() -> None:
    """Checks the wheel, and says what it did."""
    parser = argparse.ArgumentParser(description="Check what pip installs.")
    parser.add_argument("--twine", type=lambda text: Path(text).absolute(), required=True, help="a Python with twine")
    parser.add_argument("--whole", action="store_true", help="take all packages from the package index")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        wheel, sdist = build_wheel.build(directory / "dist"), build_wheel.build_sdist(directory / "dist")
        print(run([options.twine, "-m", "twine", "check", "--strict", wheel, sdist], directory).strip())
        python = install(wheel, directory, whole=options.whole)
        shown = build_program(python, directory)
        built, printed = (_DIGEST.search(text) for text in (shown, (ROOT / "README.md").read_text("utf-8")))
        if built is None or printed is None or built[1] != printed[1]:
            raise SystemExit(f"the installed wheel makes another program than the README shows:\n{shown}")
        print(f"{wheel.name}: installed from a folder, and builds README's program: {built[1]}")


if __name__ == "__main__":
    main()
