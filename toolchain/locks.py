"""Reads locks in pip's format: which package has which version on this machine.

A lock is for several versions of Python and several systems: a pin may end with a condition (PEP 508), such as
`tomli==2.2.1 ; python_full_version < '3.11'`. What is checked here are the pins whose condition holds.

Uses only the standard library, since it runs before anything is installed.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path

_PIN = re.compile(r"([\w.-]+)(?:\[[^]]*\])? *== *([^\s;]+)(?:(?: |\\\n)*; *((?:(?! --| #)[^\\\n])*))?")


def pins_of(locks: list[Path]) -> list[str]:
    """Returns the pins of several locks that apply here, each once, since two extras may need the same package. The
    locks must not conflict. A pin includes the lines with its hashes."""
    pins = [
        pin
        for lock in locks
        for pin in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip())
        if not pin.startswith("#") and applies(pin)
    ]
    return list(dict.fromkeys(pins))


def pinned(pins: list[str]) -> dict[str, str]:
    """Returns the version of each package. Other lines of a lock, such as options of pip, are left out."""
    matches = (_PIN.match(pin) for pin in pins)
    return {normalized(match[1]): match[2] for match in matches if match}


def normalized(name: str) -> str:
    """Returns the name of a distribution as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def applies(pin: str) -> bool:
    """Returns whether the condition of a pin holds for this Python and this machine. A pin without one applies."""
    match = _PIN.match(pin)
    return match is None or match[3] is None or holds(match[3].strip())


def holds(condition: str) -> bool:
    """Returns the value of a condition such as `python_full_version < '3.13' and sys_platform == 'linux'`.

    Conditions are written like expressions of Python. Exits if one is not: pip knows more of them (`~=`), and a lock
    that is resolved has none of these.
    """
    try:
        return _value(ast.parse(condition, mode="eval").body)
    except (SyntaxError, KeyError, ValueError):
        sys.exit(f"cannot read the condition of a pin: {condition}")


def _value(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        values = [_value(part) for part in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _text(node.left), _text(node.comparators[0])
        operator = _OPERATORS[type(node.ops[0])]
        named = {part.id for part in (node.left, node.comparators[0]) if isinstance(part, ast.Name)}
        if named & _VERSIONS and not isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return operator(_version(left), _version(right))
        return operator(left, right)
    raise ValueError(node)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return ENVIRONMENT[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError(node)


def _version(text: str) -> tuple[int, ...]:
    """Returns the numbers of a version. `3.11` and `3.11.0` are equal. Raises ValueError for another form of version,
    such as `3.11.*`."""
    numbers = [int(part) for part in re.sub(r"(a|b|rc)\d+$|\+$", "", text).split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


_VERSIONS = {"python_version", "python_full_version", "implementation_version"}

_OPERATORS: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Lt: lambda left, right: left < right,
    ast.LtE: lambda left, right: left <= right,
    ast.Gt: lambda left, right: left > right,
    ast.GtE: lambda left, right: left >= right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


ENVIRONMENT = {
    "extra": "",
    "implementation_name": sys.implementation.name,
    "implementation_version": platform.python_version(),
    "os_name": os.name,
    "platform_machine": platform.machine(),
    "platform_python_implementation": platform.python_implementation(),
    "platform_release": platform.release(),
    "platform_system": platform.system(),
    "platform_version": platform.version(),
    "python_full_version": platform.python_version(),
    "python_version": "{}.{}".format(*sys.version_info),
    "sys_platform": sys.platform,
}
"""What conditions can name (PEP 508)."""


def use_platform(name: str) -> None:
    """Makes conditions hold for other machines than this one: `linux_x86_64`, `linux_aarch64` or `osx_aarch64`."""
    if name not in {"linux_x86_64", "linux_aarch64", "osx_aarch64"}:
        sys.exit(f"unknown platform: {name}")
    system, _, machine = name.partition("_")
    ENVIRONMENT.update(_SYSTEMS[system])
    ENVIRONMENT["platform_machine"] = "arm64" if (system, machine) == ("osx", "aarch64") else machine


_SYSTEMS = {
    "linux": {"os_name": "posix", "platform_system": "Linux", "sys_platform": "linux"},
    "osx": {"os_name": "posix", "platform_system": "Darwin", "sys_platform": "darwin"},
}


def with_others(pins: list[str], others: list[str]) -> list[str]:
    """Returns pins in which others take the place of those of the same packages."""
    replaced = pinned(others).keys()
    return [pin for pin in pins if not pinned([pin]).keys() & replaced] + others


def check_has(pins: list[str], names: list[str]) -> None:
    """Exits if the user's own lock lacks a package that the driver needs."""
    if missing := [name for name in names if name not in pinned(pins)]:
        sys.exit(
            f"`requirements` lacks packages that the driver needs: {', '.join(missing)}. `dependencies` in "
            "pyproject.toml of rules_executorch has their versions"
        )


def check_covers(pins: list[str], locks: list[Path]) -> None:
    """Exits if the user's own lock lacks a package of other locks. It may have another version of it."""
    for lock in locks:
        missing = pinned(pins_of([lock])).keys() - pinned(pins).keys()
        if missing:
            extra = lock.stem.removeprefix("requirements-")
            sys.exit(f"`requirements` lacks packages of the extra `{extra}`: {', '.join(sorted(missing))}")


def added_pins(lock: Path, pins: list[str], cuda: Path) -> list[str]:
    """Returns the pins of a user's lock that the toolchain does not have.

    Such a lock repeats what its packages have in common with the toolchain, also what a CUDA build of torch needs.
    Exits if it has another version of a package, or a line that pins no version: nothing would come of it.
    """
    known = pinned(pins)
    only_cuda = pinned(pins_of([cuda])).keys() - known.keys()
    added = []
    for pin in pins_of([lock]):
        if not pinned([pin]):
            sys.exit(f"{lock.name} has a line that is not `PACKAGE==VERSION` with hashes: {pin.splitlines()[0]}")
        for name, version in pinned([pin]).items():
            if name not in known and name not in only_cuda:
                added.append(pin)
            elif name in known and version.split("+")[0] != known[name].split("+")[0]:
                sys.exit(
                    f"{lock.name} has {name} {version}, and the toolchain has {name} {known[name]}: make the lock "
                    "again, with the lock of the toolchain as a constraint"
                )
    return added


def split_torch(pins: list[str]) -> tuple[str, list[str]]:
    """Splits pins into torch's and all others. Exits if there is not exactly one pin of torch."""
    torch = [pin for pin in pins if "torch" in pinned([pin])]
    if len(torch) != 1:
        sys.exit(f"the requirements must pin torch once, with `torch==`, and do it {len(torch)} times")
    return torch[0], [pin for pin in pins if pin not in torch]


def build_of_torch(pin: str, cpu: Path, wanted: str) -> str:
    """Returns the pin of the build of torch that is installed: the CPU build if the lock has its hash for this Python
    and machine, unless `wanted` is `index`. Otherwise the one on the package index, such as that for CUDA.

    Exits if `wanted` is `cpu` and there is none. On macOS, all builds on the index are CPU builds.
    """
    version = pinned([pin])["torch"]
    known = [each for each in pins_of([cpu]) if set(_HASH.findall(each)) & set(_HASH.findall(pin))]
    if "+" in version or (not known and wanted == "cpu" and sys.platform == "darwin"):
        return pin
    if known and wanted != "index":
        return _PIN.sub("torch==" + pinned(known)["torch"], pin, count=1)
    if wanted == "cpu":
        sys.exit(
            f"the lock has no CPU build of torch {version} for Python {ENVIRONMENT['python_version']} on "
            f"{ENVIRONMENT['sys_platform']} {ENVIRONMENT['platform_machine']}: choose another `python_version`, or "
            "name a lock that has it (`requirements`): `The build of torch` in docs/toolchains.md says how to make one"
        )
    return _PIN.sub(f"torch==={version}", pin, count=1)  # `==` would also take another build


_HASH = re.compile(r"--hash=sha256:\S+")
