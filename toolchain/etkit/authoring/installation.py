"""Looks at what builds on this machine need: packages, backends, build systems, the cache, and space."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from etbuild import backends, extras, releases
from etbuild.errors import EtbuildError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GOOD, ABSENT, BAD = "good", "absent", "bad"
_ROOM = 10**9  # bytes that should be free
_SECONDS = 20  # how long a build system may take to print its version
_BUILD_SYSTEMS = ("bazel", "bazelisk", "buck2")
_IMPORTS = """
import torch
import executorch.exir
from executorch.runtime import Runtime
registry = Runtime.get().backend_registry
names = sorted(name for name in registry.registered_backend_names if registry.is_available(name))
print(f"torch {torch.__version__} and ExecuTorch can be imported; its runtime has {', '.join(names) or 'no backend'}")
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: Its kind, such as `backend`.
        state: `good`; `absent`, which only matters to those who need it; or `bad`: builds fail.
        said: What was found.
        advice: What to do about it.
    """

    about: str
    state: str
    said: str
    advice: str | None = None


def findings(cache: Path | None) -> Iterator[Finding]:
    """Looks at everything. Imports neither torch nor ExecuTorch into this process.

    Args:
        cache: The directory of the local cache. None: the default.
    """
    yield _python()
    yield from _packages()
    yield _imports()
    yield from map(_backend, sorted(backends.known()))
    yield from map(_build_system, _BUILD_SYSTEMS)
    yield _landlock()
    yield _warm()
    yield from _cache(cache)
    yield from _space()


def _python() -> Finding:
    said = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}: {sys.executable}"
    requirements = _distribution()
    wanted = requirements and requirements.metadata["Requires-Python"]
    if wanted:
        from packaging.specifiers import SpecifierSet

        if not SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
            return Finding("python", BAD, said, f"etbuild needs Python {wanted}")
    return Finding("python", GOOD, said)


def _distribution() -> metadata.Distribution | None:
    """The metadata of etbuild as pip has installed it; None in Bazel, which has only the files."""
    try:
        return metadata.distribution(extras.DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    """One finding for each package that builds need, and one for each extra."""
    from packaging.requirements import Requirement

    found = _distribution()
    lines = [f"{name}=={release}" for name, release in releases.WRITTEN_FOR.items()]
    needed = list(map(Requirement, (found and found.requires) or lines))
    for requirement in needed:
        if requirement.marker is None:
            yield _package(requirement)
    for extra in (found and found.metadata.get_all("Provides-Extra")) or ():
        own = [each for each in needed if each.marker is not None and each.marker.evaluate({"extra": extra})]
        absent = [each.name for each in own if _package(each).state != GOOD]
        said = f"{extra}: needs {', '.join(absent)}" if absent else extra
        hint = extras.install_hint(extra) if absent else None
        yield Finding("extra", ABSENT if absent else GOOD, said, hint)


def _package(requirement: Requirement) -> Finding:
    install = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding("package", BAD, f"{requirement.name} is not installed", install)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding("package", GOOD, f"{requirement.name} {version}")
    said = f"{requirement.name} {version} is installed, and etbuild needs {requirement.specifier}"
    return Finding("package", BAD, said, install)


def _imports() -> Finding:
    """Whether torch and ExecuTorch can be imported: that also fails for other reasons, such as an old C library."""
    command = [sys.executable, "-c", _IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("torch ")]
    if done.returncode == 0 and lines:
        return Finding("imports", GOOD, lines[-1])
    reason = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
    said = f"torch and ExecuTorch cannot be imported: {reason.strip()}"
    return Finding("imports", BAD, said, "install the packages again, in a new environment")


def _backend(name: str) -> Finding:
    try:
        absent = backends.missing(name, ())
    except EtbuildError as error:
        return Finding("backend", BAD, f"{name}: {error}")
    if not absent:
        return Finding("backend", GOOD, name)
    needs = ", ".join(problem.message.removeprefix(f"the backend `{name}` needs ") for problem in absent)
    hints = dict.fromkeys(str(problem.hint) for problem in absent)
    return Finding("backend", ABSENT, f"{name}: needs {needs}", "; ".join(hints))


def _build_system(name: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding("build system", ABSENT, f"{name}: not on the PATH")
    if name == "bazelisk":  # in a workspace, it would download a release of Bazel
        return Finding("build system", GOOD, f"{name}: {path}")
    try:
        with tempfile.TemporaryDirectory() as elsewhere:  # outside a workspace, which may ask for another release
            command = [path, "--version"]
            said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=elsewhere, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("build system", ABSENT, f"{name}: {path} does not say its version: {error}")
    version = said.stdout.strip()
    if not any(character.isdigit() for character in version):  # Bazel that Debian builds says `bazel no_version`
        version = f"{name}, which names no version"
    return Finding("build system", GOOD, f"{version}: {path}")


def _landlock() -> Finding:
    """Whether the kernel refuses what a model reads and does not declare."""
    from etplugins.guard import landlock

    if version := landlock.version():
        return Finding("undeclared files", GOOD, f"the kernel refuses to open them (Landlock {version})")
    why = f"{landlock.OFF} is set" if os.environ.get(landlock.OFF) else "this kernel has no Landlock"
    advice = "builds refuse only what Python opens: the page 'What a model reads' lists the rest"
    return Finding("undeclared files", ABSENT, f"landlock: {why}", advice)


def _warm() -> Finding:
    """The warm processes of this user."""
    from etkit.warm import client, place

    number = len([path for path in place.sockets() if client.ask(path, {})])
    if number:
        return Finding("warm processes", GOOD, f"{number}, which builds fork from (`etbuild server stop` ends them)")
    return Finding("warm processes", ABSENT, "warm process: none", "a build on the command line leaves one behind")


def _cache(directory: Path | None) -> Iterator[Finding]:
    from etbuild.files.cache_directory import default_directory
    from etkit.building import cache_upkeep
    from etkit.local.cache.store import Cache
    from etkit.tables import size

    try:
        info = cache_upkeep.info(Cache(directory or default_directory()))
    except (EtbuildError, OSError) as error:
        yield Finding("cache", BAD, str(error), "name another directory with --cache-dir or $ETBUILD_CACHE_DIR")
        return
    yield Finding("cache", GOOD, f"{info.directory}: {info.blobs} blobs, {size(info.size)}; it can be locked")


def _space() -> Iterator[Finding]:
    from etkit.tables import size

    for place in dict.fromkeys((Path(), Path(tempfile.gettempdir()))):
        try:
            free = shutil.disk_usage(place).free
        except OSError as error:
            yield Finding("disk", BAD, f"{place}: {error.strerror}")
            continue
        state, advice = (GOOD, None) if free > _ROOM else (BAD, "builds fail when it is full")
        yield Finding("disk", state, f"{place.absolute()}: {size(free)} free", advice)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("memory", GOOD, f"{size(memory)}, {os.cpu_count()} processors")
