"""Pins every package of the toolchain: its version and the sha256 of each of its files.

    python toolchain/update_lock.py [--upgrade] [PIP_ARGUMENT]...

Needs `packaging`, and `uv` and `pip` on the PATH. Writes to its own directory:
    requirements.lock        packages that the driver needs (its direct requirements are in pyproject.toml)
    requirements-EXTRA.lock  additional packages that an extra needs
    requirements-cpu.lock    the CPU builds of torch
    requirements-cuda.lock   additional packages that the registry's own Linux build of torch needs
    requirements-build.lock  packages that build the toolchain
    requirements-executorch-RELEASE.lock  an older release of ExecuTorch, in place of the newest one

Each lock is for every Python of `PYTHONS` on every platform of `PLATFORMS`. All extras are resolved together, so a
package has the same version for every choice of extras, Python and platform. A package that some of them do not need
has an environment marker, `name==version ; marker`, as pip reads it. Versions stay as they are while the requirements
allow it; `--upgrade` takes the newest ones.

PyTorch publishes its CPU builds on a separate index, which uv does not search. Their hashes come from the wheels that
`pip download` gets with the other arguments of this command. Name that index in them or in pip's configuration.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tomllib
from packaging.markers import Marker

from etbuild.releases import SUPPORTED

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
PYTHONS = ("3.11", "3.12", "3.13")
# By uv's name of a platform: what Python says about itself there.
PLATFORMS = {
    "x86_64-manylinux_2_28": {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"},
    "aarch64-manylinux_2_28": {"sys_platform": "linux", "platform_machine": "aarch64", "platform_system": "Linux"},
    "aarch64-apple-darwin": {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"},
}
# The values of environment markers for each Python and platform.
ENVIRONMENTS = {
    (python, platform): {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "extra": "",
        **values,
    }
    for python in PYTHONS
    for platform, values in PLATFORMS.items()
}
BUILD_REQUIREMENTS = "pip\nsetuptools\nuv\n"
CUDA = re.compile(r"(nvidia|cuda|triton)\b")
HEADER = """\
# {purpose}
# Made by `python toolchain/update_lock.py` for Python {pythons} on {platforms}; do not edit.
"""


@dataclass
class Pin:
    """One version of a package, such as `numpy==2.1.3`."""

    requirement: str
    hashes: list[str]
    needed: set[tuple[str, str]]  # the environments

    def __str__(self) -> str:
        return " \\\n    ".join([self.requirement + marker(self.needed), *sorted(set(self.hashes))])


def main(arguments: list[str]) -> None:
    """Writes the lock files."""
    upgrade, pip_arguments = "--upgrade" in arguments, [word for word in arguments if word != "--upgrade"]
    known = "" if upgrade else "".join(path.read_text(encoding="utf-8") for path in HERE.glob("requirements*.lock"))
    together = resolve(str(PROJECT), "--all-extras", preferred=known)
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "together.txt")
        constraints.write_text(together, encoding="utf-8")
        constrained = ("--constraint", str(constraints))
        base = pins(resolve(str(PROJECT), *constrained, preferred=together))
        of_extras = {
            extra: pins(resolve(str(PROJECT), "--extra", extra, *constrained, preferred=together)) for extra in extras()
        }
    cpu = cpu_builds(base["torch"].requirement, pip_arguments)
    base["torch"].hashes += cpu.hashes
    packages = [pin for name, pin in base.items() if not CUDA.match(name)]
    write("requirements.lock", "What the driver needs at run time.", packages)
    for extra, found in of_extras.items():
        for name, pin in found.items():
            pin.needed -= base[name].needed if name in base else set()
        added = [pin for pin in found.values() if pin.needed]
        write(f"requirements-{extra}.lock", f"What the driver's extra `{extra}` needs in addition.", added)
    write(
        "requirements-cuda.lock",
        "What the registry's own build of torch needs in addition; a CPU build needs none of it.",
        [pin for name, pin in base.items() if CUDA.match(name)],
    )
    write("requirements-cpu.lock", "The CPU builds of torch, on an index of their own.", [cpu])
    for release in SUPPORTED[:-1]:
        one = pins(resolve("-", "--no-deps", stdin=f"executorch=={release}\n", preferred=""))
        purpose = f"ExecuTorch {release}, in place of the release in `requirements.lock`."
        write(f"requirements-executorch-{release}.lock", purpose, list(one.values()))
    builders = pins(resolve("-", stdin=BUILD_REQUIREMENTS, preferred=known))
    write("requirements-build.lock", "What builds the toolchain.", list(builders.values()))


def extras() -> list[str]:
    """Returns the names of the driver's extras."""
    return sorted(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"])


def resolve(source: str, *options: str, preferred: str, stdin: str = "") -> str:
    """Returns uv's pins of everything that `source` needs on any platform, at the versions of `preferred` if it can."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "requirements.txt")
        output.write_text(preferred, encoding="utf-8")
        command = ["uv", "pip", "compile", source, *options, "--generate-hashes", "--no-header", "--no-annotate"]
        command += ["--no-emit-index-url", "--universal", "--python-version", PYTHONS[0], "--quiet", "-o", str(output)]
        subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, text=True, check=True)
        return output.read_text(encoding="utf-8")


def pins(lock: str) -> dict[str, Pin]:
    """Reads uv's pins, by name. A package that no environment of ours needs is left out."""
    found: dict[str, Pin] = {}
    for pin in re.split(r"\n(?=\S)", lock.strip()):
        first, *hashes = pin.split(" \\\n    ")
        requirement, _, marker = first.partition(" ; ")
        needed = {key for key, values in ENVIRONMENTS.items() if not marker or Marker(marker).evaluate(values)}
        if needed:
            name = requirement.partition("==")[0]
            if name in found:
                sys.exit(f"two versions of {name}: {found[name].requirement} and {requirement}")
            found[name] = Pin(requirement, hashes, needed)
    return found


def marker(needed: set[tuple[str, str]]) -> str:
    """Returns the end of a requirement that only some environments need."""
    if needed == ENVIRONMENTS.keys():
        return ""
    clauses = []
    for platform, values in PLATFORMS.items():
        pythons = [python for python, other in ENVIRONMENTS if (python, platform) in needed and other == platform]
        terms = [f"{name} == '{values[name]}'" for name in ("sys_platform", "platform_machine")]
        if 0 < len(pythons) < len(PYTHONS):
            terms.append(f"python_version in '{' '.join(pythons)}'")
        clauses += [" and ".join(terms)] if pythons else []
    return " ; " + " or ".join(clauses)


def cpu_builds(requirement: str, pip_arguments: list[str]) -> Pin:
    """Returns the pin of torch's CPU wheels: of each Python whose wheel pip finds. There must be at least one."""
    found = Pin(f"{requirement}+cpu", [], set())
    for python in PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
            command += ["--python-version", python, "--platform", "manylinux_2_28_x86_64", "--dest", folder]
            # `+cpu` is part of the version: no other build matches.
            if not subprocess.run([*command, found.requirement, *pip_arguments], check=False).returncode:
                (wheel,) = Path(folder).iterdir()
                found.hashes.append("--hash=sha256:" + hashlib.sha256(wheel.read_bytes()).hexdigest())
                found.needed.add((python, "x86_64-manylinux_2_28"))
    if not found.hashes:
        sys.exit(f"pip finds no CPU build of torch: name an index that has {found.requirement}")
    return found


def write(file: str, purpose: str, packages: list[Pin]) -> None:
    """Writes one lock file."""
    header = HEADER.format(purpose=purpose, pythons=", ".join(PYTHONS), platforms=", ".join(PLATFORMS))
    (HERE / file).write_text(header + "\n".join(map(str, packages)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
