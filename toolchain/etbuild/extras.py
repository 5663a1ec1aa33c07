"""Says how to install the packages of an extra."""

from __future__ import annotations

import re
import shlex

DISTRIBUTION = "rules-executorch"
_OF_EXTRA = re.compile(r"(?P<requirement>[^;]*); extra == ['\"](?P<extra>[^'\"]*)['\"]")


def install_hint(*extras: str) -> str:
    """Returns the command that installs what extras need, and what to write in Bazel.

    The command does not name this package: it is on no index, where another one may have its name.

    Args:
        extras: Names of extras in `pyproject.toml`.
    """
    names = " and ".join(f'"{extra}"' for extra in extras)
    in_bazel = f"in Bazel, add {names} to the `extras` of the toolchain"
    packages = [shlex.quote(requirement) for extra in extras for requirement in _requirements(extra)]
    return f"pip install {' '.join(packages)}; {in_bazel}" if packages else in_bazel


def _requirements(extra: str) -> list[str]:
    """What an extra needs, in pip's form. Empty if only the files of this package exist, as in Bazel."""
    from importlib import metadata

    try:
        requires = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    matches = (_OF_EXTRA.fullmatch(line) for line in requires)
    return [match["requirement"].strip() for match in matches if match and match["extra"] == extra]
