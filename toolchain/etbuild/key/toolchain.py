"""The toolchain of a build, apart from the driver: Python, and the distributions that the sources import."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from etbuild.errors import InputError
from etbuild.extras import DISTRIBUTION
from etbuild.key import distributions

if TYPE_CHECKING:
    from etbuild.results import Python

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")


def toolchain(packages: Iterable[str] = (), of_backends: Iterable[str] = ()) -> Python:
    """The toolchain as JSON data: the used distributions by version and content, and Python's version.

    These distributions are used, each with everything that it requires: those that the driver requires, those that own
    the packages that the sources import, and those that backends need. `startup` is the code that Python runs when it
    starts, if there is any. The patch release of Python is left out: it does not change the bytes, and the machines of
    one build may have different ones.

    Args:
        packages: Top-level names that the sources import.
        of_backends: Distributions that backends need.

    Raises:
        InputError: An imported package belongs to no distribution, so its version is unknown.
    """
    described: Python = {
        "python": f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}",
        "distributions": {
            name: {"version": version, "sha256": sha256}
            for name in sorted({*distributions_of(packages), *_requirements(*sorted(of_backends))})
            for version, sha256 in [distributions.facts(name)]
        },
    }
    if startup := distributions.startup():
        described["startup"] = startup
    return described


def check_installed(packages: Iterable[str] = ()) -> None:
    """Checks that the driver's requirements and the packages that sources import are as they were installed.

    Raises:
        InputError: A file was changed after its installation.
    """
    imported = frozenset(packages)
    for name in sorted(distributions_of(imported)):
        distributions.check_unedited(name, imported & distributions.OF_DEVELOPERS)


def distributions_of(packages: Iterable[str]) -> set[str]:
    """The distributions in the key of every build whose sources import these packages.

    Raises:
        InputError: An imported package belongs to no distribution, so its version is unknown.
    """
    names = set(_requirements("executorch", "torch", "jsonschema", "pyyaml", "safetensors"))
    others = [name for name in sorted(packages) if name not in names]
    owners = _owners() if others else {}
    if not owners.keys() >= set(others):  # one may have been installed since this process looked
        _owners.cache_clear()
        owners = _owners()
    for name in others:
        if name in owners:
            names.update(_requirements(*owners[name]))
        elif importlib.util.find_spec(name) is not None:
            raise InputError.at(
                ("model", "factory"),
                f"the sources import `{name}`, which is installed without a version for the key",
                "declare it as a source, or install it as a distribution",
            )
    return names


_owners = functools.cache(distributions.by_top_level_name)  # this reads a file of each installed distribution


@functools.cache
def _requirements(*roots: str) -> tuple[str, ...]:
    """The named distributions and everything that they require, also for the extras that are asked for. Leaves out
    what is not installed."""
    names = list[str]()
    waiting, seen = list(roots), set[tuple[str, str]]()
    while waiting:
        wanted = _REQUIREMENT.match(waiting.pop())
        assert wanted is not None
        name = canonical_name(wanted.group(1))
        # Without an extra, a package needs what no marker binds to one.
        extras = {"", *(canonical_name(extra.strip()) for extra in (wanted.group(2) or "").split(","))}
        new = {(name, extra) for extra in extras} - seen
        seen |= new
        if not new or name == DISTRIBUTION:  # the key covers the driver by its files
            continue
        try:
            _, required = distributions.version_and_requirements(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of another platform
        names.append(name)
        for each in required:
            bound = {canonical_name(extra) for extra in _EXTRA.findall(each)} or {""}
            if any((name, extra) in new for extra in bound):
                waiting.append(each)
    return tuple(dict.fromkeys(names))


def canonical_name(name: str) -> str:
    """The name of a distribution as packaging tools compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
