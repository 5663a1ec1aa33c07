"""The locks: one for the driver and one for each extra. They do not conflict."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

REPOSITORY = Path(__file__).parents[2]
TOOLCHAIN = REPOSITORY / "toolchain"
OTHERS = {"build", "cuda"}  # locks that do not belong to an extra


def extras() -> set[str]:
    return set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock.read_text(), re.MULTILINE))


def test_every_extra_has_its_lock() -> None:
    locks = {path.stem.removeprefix("requirements-") for path in TOOLCHAIN.glob("requirements-*.lock")}
    assert locks == extras() | OTHERS


def test_the_repository_rule_has_every_extra() -> None:
    text = (REPOSITORY / "rules/private/packages_repository.bzl").read_text()
    listed = re.search(r"^EXTRAS = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert re.findall(r'"(.+?)"', listed[1]) == sorted(extras())


def test_a_package_has_one_version_in_all_extras() -> None:
    versions: dict[str, set[str]] = {}
    for extra in extras():
        for name, version in pins(TOOLCHAIN / f"requirements-{extra}.lock").items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_no_extra_repeats_what_the_driver_needs_anyway() -> None:
    base = pins(TOOLCHAIN / "requirements.lock")
    for extra in extras():
        assert not base.keys() & pins(TOOLCHAIN / f"requirements-{extra}.lock").keys(), extra


def test_every_file_has_a_hash() -> None:
    for lock in TOOLCHAIN.glob("requirements*.lock"):
        for pin in re.split(r"\n(?=[a-z])", lock.read_text())[1:]:
            assert "--hash=sha256:" in pin, (lock.name, pin.split()[0])
