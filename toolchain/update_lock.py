"""Pins every package of the toolchain: its version and the sha256 of each of its files.

    python toolchain/update_lock.py [PIP_ARGUMENT]...

Needs Python 3.11, and `uv` and `pip` on the PATH. Writes to its own directory:
    requirements.lock        packages that the driver needs (its direct requirements are in pyproject.toml)
    requirements-EXTRA.lock  additional packages that an extra needs
    requirements-cuda.lock   additional packages that the registry's own Linux build of torch needs
    requirements-build.lock  packages that build the toolchain

All extras are resolved together, so a package has the same version for every choice of extras.

PyTorch publishes its CPU builds on a separate index, which uv does not search. Their hashes come from the wheel that
`pip download` gets with the arguments of this command. Name that index in the arguments or in pip's configuration.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
PYTHON_VERSION = "3.11"
PLATFORM = "x86_64-manylinux_2_28"
BUILD_REQUIREMENTS = "pex\nsetuptools\n"
CUDA = re.compile(r"(nvidia|cuda|triton)\b")
HEADER = f"""\
# {{purpose}}
# Made by `python toolchain/update_lock.py` for Python {PYTHON_VERSION}, {PLATFORM}; do not edit.
"""


def main(pip_arguments: list[str]) -> None:
    """Writes the lock files."""
    project = HERE.parent / "pyproject.toml"
    extras = sorted(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder, "together.txt")
        together.write_text(resolve(str(project), "--all-extras"), encoding="utf-8")
        constrained = ("--constraint", str(together))
        base = split(resolve(str(project), *constrained))
        of_extras = {extra: split(resolve(str(project), "--extra", extra, *constrained)) for extra in extras}
    torch = next(pin for pin in base if pin.startswith("torch=="))
    packages = [pin for pin in base if not CUDA.match(pin)]
    packages[packages.index(torch)] = with_hash(torch, cpu_build(torch, pip_arguments))
    write("requirements.lock", "What the driver needs at run time.", packages)
    for extra, pins in of_extras.items():
        added = [pin for pin in pins if pin not in base]
        write(f"requirements-{extra}.lock", f"What the driver's extra `{extra}` needs in addition.", added)
    write(
        "requirements-cuda.lock",
        "What the registry's own build of torch needs in addition; a CPU build needs none of it.",
        [pin for pin in base if CUDA.match(pin)],
    )
    write(
        "requirements-build.lock",
        "What builds the toolchain.",
        split(resolve("-", stdin=BUILD_REQUIREMENTS)),
    )


def resolve(source: str, *options: str, stdin: str = "") -> str:
    """Returns uv's pins of everything that `source` needs."""
    command = ["uv", "pip", "compile", source, *options, "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    command += ["--no-emit-index-url", "--python-version", PYTHON_VERSION, "--python-platform", PLATFORM]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


def split(lock: str) -> list[str]:
    """Splits a lock into its pins. Each includes the lines with its hashes."""
    return re.split(r"\n(?=\S)", lock.strip())


def cpu_build(torch: str, pip_arguments: list[str]) -> str:
    """Returns the sha256 of torch's CPU wheel."""
    requirement = torch.split(maxsplit=1)[0]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", PYTHON_VERSION, "--platform", "manylinux_2_28_x86_64"]
        subprocess.run([*command, "--dest", folder, requirement, *pip_arguments], check=True)
        (wheel,) = Path(folder).iterdir()
        if "+cpu" not in wheel.name:
            sys.exit(f"pip found {wheel.name}, which is not a CPU build: name an index that has {requirement}+cpu")
        return hashlib.sha256(wheel.read_bytes()).hexdigest()


def with_hash(pin: str, sha256: str) -> str:
    """Returns a pin with the hash of one more file."""
    first, *hashes = pin.split(" \\\n    ")
    return " \\\n    ".join([first, *sorted({*hashes, f"--hash=sha256:{sha256}"})])


def write(name: str, purpose: str, pins: list[str]) -> None:
    """Writes one lock file."""
    (HERE / name).write_text(HEADER.format(purpose=purpose) + "\n".join(pins) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
