"""The fixed surroundings of a building process: always the same, and all covered by the key.

A build runs in a new process. Python starts in it without `sitecustomize`, `usercustomize` and the user's `PYTHON*`
variables. Of other environment variables, only those listed here are passed on.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import site
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from etbuild.errors import InputError
from etbuild.surroundings import arithmetic

FIXED = {
    "PYTHONHASHSEED": "0",  # otherwise sets of strings in a model have another order in each process
    "PYTHONSAFEPATH": "1",  # the current directory has no packages of the toolchain
    "PYTHONUTF8": "1",  # otherwise texts that a model reads depend on the locale
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # PyTorch's caches are not inputs
    **arithmetic.VARIABLES,
}
"""The variables that have the same value in every build."""

# The other variables that are passed on are about the user, the terminal, the network, devices, and the places of
# tools. SDKs of vendors are found by variables such as `QNN_SDK_ROOT` and `CUDA_HOME`.
_STAYS = re.compile(
    r"""PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TMP|TEMP|TZ|LANG|LANGUAGE|LC_\w+|ETBUILD_\w+
    |TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES
    |(?:HTTP|HTTPS|FTP|ALL|NO)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|\w+_OFFLINE
    |\w+_VISIBLE_DEVICES|CC|CXX|FLATC_EXECUTABLE|ANDROID_NDK|LD_PRELOAD
    |PYTHONDONTWRITEBYTECODE|PYTHONIOENCODING
    |(?!PYTHON)\w+_(?:ROOT|HOME|DIR|DIRS|PATH|SDK)""",
    re.VERBOSE | re.IGNORECASE,
)
_DROPPED = "ETBUILD_DROPPED_VARIABLES"
_MAIN = Path(__file__).parents[1] / "__main__.py"


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a building process, made from a user's. In a building process, it is the current one."""
    stays = {name: value for name, value in given.items() if stays_set(name)}
    dropped = sorted(given.keys() - stays.keys() - FIXED.keys() - {"PYTHONPATH"})
    # A building process already has the list of the user's dropped variables, and may have set others itself.
    if dropped and not FIXED.items() <= given.items():
        stays[_DROPPED] = "=".join(dropped)  # a name cannot contain this character
    paths = os.pathsep.join(map(str, python_path(given)))
    return {**stays, **({"PYTHONPATH": paths} if paths else {}), **FIXED}


def stays_set(name: str) -> bool:
    """Whether a building process sees the user's value of an environment variable."""
    return _STAYS.fullmatch(name) is not None


def dropped() -> list[str]:
    """The names of the user's environment variables that this building process does not see."""
    return os.environ.get(_DROPPED, "").split("=")


def command(arguments: Iterable[str]) -> list[str]:
    """The command that runs this driver in fixed surroundings.

    Does not use Python's option `-I`, because it also ignores `PYTHONHASHSEED`.

    Args:
        arguments: The arguments of the driver.
    """
    no_user_site = [] if _in_user_site() else ["-s"]
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, "-S", *no_user_site, *safe_path, str(_MAIN), *arguments]


def is_fixed() -> bool:
    """Whether this process was started in fixed surroundings."""
    return sys.flags.no_site == 1 and FIXED.items() <= os.environ.items()


def python_path(given: Mapping[str, str] = os.environ) -> list[Path]:
    """The directories of PYTHONPATH that builds use: all their modules belong to distributions that the key covers.

    In other directories, a module could hide an installed one without a change of the key.
    """
    return [directory for directory in _python_path(given) if _why_not(directory) is None]


def search_path() -> list[str]:
    """The `sys.path` of a building process: without the user's own site directory, unless PyTorch is there."""
    return sys.path if _in_user_site() else [each for each in sys.path if each != site.getusersitepackages()]


def check_packages() -> None:
    """Checks that a building process finds PyTorch, and notes which directories it ignores. Imports nothing.

    Raises:
        InputError: PyTorch is in a directory that builds ignore.
    """
    spec = importlib.util.find_spec("torch")
    torch = Path(spec.origin).parent if spec is not None and spec.origin else None
    for directory in _python_path(os.environ):
        why = _why_not(directory)
        if why is None or _MAIN.is_relative_to(directory):
            continue
        if torch is not None and torch.parent == directory.resolve():
            hint = "install etbuild, torch and executorch together, for example in a virtual environment"
            raise InputError.of(f"builds ignore {directory}, a directory of PYTHONPATH: {why}", hint)
        kind, hint = "a directory", f"For sources there, pass `--root {directory}`"
        if not directory.is_dir():
            kind, hint = "an entry", "Unpack it, and declare its sources or install it"
        print(f"note: builds ignore {directory}, {kind} of PYTHONPATH: {why}. {hint}", file=sys.stderr)


def _python_path(given: Mapping[str, str]) -> list[Path]:
    return absolute_paths(directory for directory in given.get("PYTHONPATH", "").split(os.pathsep) if directory)


def absolute_paths(directories: Iterable[str]) -> list[Path]:
    """Makes the paths absolute. Leaves out relative paths if the current directory was removed."""
    try:
        current = Path.cwd()
    except FileNotFoundError:
        return [Path(directory) for directory in directories if Path(directory).is_absolute()]
    return [current / directory for directory in directories]


def _why_not(directory: Path) -> str | None:
    """Why builds ignore a place; None if they do not."""
    if any(path.exists() and not path.is_dir() for path in (directory, *directory.parents)):
        return "it is not a directory, and the key does not cover the content of an archive"
    stranger = _stranger(directory)
    return stranger and f"`{stranger}` there belongs to no installed package, so the key does not cover its content"


def _stranger(directory: Path) -> str | None:
    """A file or directory in a place that can be imported, but belongs to no distribution there, or hides one of
    Python's own modules. None if there is none."""
    distributions = importlib.metadata.distributions(path=[str(directory)])
    records = [distribution.read_text("RECORD") or "" for distribution in distributions]
    owned = {re.split("[/,]", row, maxsplit=1)[0] for record in records for row in record.splitlines()}
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        name, is_module = entry.name.partition(".")[0], entry.suffix in (".py", ".pyc", ".so")
        is_package = entry.is_dir() and entry.name.isidentifier() and entry.name not in ("__pycache__", "bin")
        if not (is_package or is_module):
            continue
        if entry.name not in owned or name in sys.stdlib_module_names or name in ("sitecustomize", "usercustomize"):
            return entry.name
    return None


def _in_user_site() -> bool:
    """Whether the toolchain is installed in the user's own site directory, below the home directory."""
    if not site.ENABLE_USER_SITE:
        return False
    spec = importlib.util.find_spec("torch")
    return spec is not None and Path(spec.origin or "").is_relative_to(site.getusersitepackages())
