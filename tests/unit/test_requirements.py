"""The locks: one for the driver and one for each extra. They do not conflict."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import locks
import update_lock
from etbuild.releases import SUPPORTED
from tools.reference.starlark import Loader

REPOSITORY = Path(__file__).parents[2]
TOOLCHAIN = REPOSITORY / "toolchain"
OLDER = {f"executorch-{release}" for release in SUPPORTED[:-1]}
OTHERS = {"build", "cpu", "cuda", *OLDER}  # locks that do not belong to an extra


def extras() -> set[str]:
    return set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock.read_text(), re.MULTILINE))


def package_facts() -> dict[str, Any]:
    """What the rules know about packages."""
    return Loader(REPOSITORY).load(REPOSITORY / "rules/private/package_facts.bzl").names


def test_every_extra_has_its_lock() -> None:
    locks = {path.stem.removeprefix("requirements-") for path in TOOLCHAIN.glob("requirements-*.lock")}
    assert locks == extras() | OTHERS


def test_the_lock_has_what_the_driver_depends_on() -> None:
    assert {*package_facts()["REQUIRED"]} <= pins(TOOLCHAIN / "requirements.lock").keys()


def test_the_platforms_of_the_rules_are_those_of_the_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in package_facts()["PLATFORMS"]:
        monkeypatch.setattr(locks, "ENVIRONMENT", {})
        locks.use_platform(name)
    with pytest.raises(SystemExit, match="unknown platform: osx_x86_64"):
        locks.use_platform("osx_x86_64")


def test_a_package_has_one_version_in_all_extras() -> None:
    versions: dict[str, set[str]] = {}
    for extra in extras():
        for name, version in pins(TOOLCHAIN / f"requirements-{extra}.lock").items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_every_file_has_a_hash() -> None:
    for lock in TOOLCHAIN.glob("requirements*.lock"):
        for pin in re.split(r"\n(?=[a-z])", lock.read_text())[1:]:
            assert "--hash=sha256:" in pin, (lock.name, pin.split()[0])


def installed(environment: dict[str, str], extra: str = "") -> dict[str, str]:
    """The versions that pip installs in an environment, from the locks of the driver and of an extra."""
    versions: dict[str, str] = {}
    for lock in ["requirements", "requirements-cuda", *([f"requirements-{extra}"] if extra else [])]:
        for line in re.findall(r"^[a-z0-9].*==.*", (TOOLCHAIN / f"{lock}.lock").read_text(), re.MULTILINE):
            pin = Requirement(line.rstrip(" \\"))
            if not pin.marker or pin.marker.evaluate(environment):
                assert pin.name not in versions, line
                versions[pin.name] = str(pin.specifier).removeprefix("==")
    return versions


def required(requirements: list[str], environment: dict[str, str], extra: str) -> Iterator[Requirement]:
    for requirement in map(Requirement, requirements):
        if not requirement.marker or requirement.marker.evaluate({**environment, "extra": extra}):
            yield requirement


@pytest.mark.parametrize("extra", ["", *update_lock.extras()])
@pytest.mark.parametrize("environment", update_lock.ENVIRONMENTS.values(), ids=map("-".join, update_lock.ENVIRONMENTS))
def test_the_locks_have_what_each_environment_needs(environment: dict[str, str], extra: str) -> None:
    versions = installed(environment, extra)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + (project["optional-dependencies"][extra] if extra else [])
    left, seen = list(required(asked, environment, "")), set[tuple[str, str]]()
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{requirement} is in no lock"
        assert requirement.specifier.contains(versions[name], prereleases=True), f"{requirement}: {versions[name]}"
        for part in {"", *requirement.extras} - {part for known, part in seen if known == name}:
            seen.add((name, part))
            left += required(requirements_of(name, versions[name]), environment, part)
    # Packages that `.venv` has not, such as NVIDIA's, do not say here what they need.
    unknown = {name for name, version in versions.items() if requirements_of(name, version) is NOT_HERE}
    if not unknown:
        assert versions.keys() == {name for name, _ in seen}


NOT_HERE: list[str] = []


@cache
def requirements_of(name: str, version: str) -> list[str]:
    """What a package says that it needs, or `NOT_HERE` if the package is not installed here in that version."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return NOT_HERE
    return list(distribution.requires or []) if distribution.version.partition("+")[0] == version else NOT_HERE


@pytest.mark.parametrize("release", SUPPORTED[:-1])
def test_an_older_release_takes_the_place_of_the_newest(release: str) -> None:
    newest = locks.pins_of([TOOLCHAIN / "requirements.lock"])
    older = locks.with_others(newest, locks.pins_of([TOOLCHAIN / f"requirements-executorch-{release}.lock"]))
    assert locks.pinned(older) == {**locks.pinned(newest), "executorch": release}
    assert len(older) == len(newest)
