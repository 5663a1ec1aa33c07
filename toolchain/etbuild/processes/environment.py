"""The surroundings of a process that builds: the same each time, without code and settings that the key does not cover.

A build runs in a new process, of which nothing is left to its user's surroundings: Python is started without
`sitecustomize`, `usercustomize` and the variables `PYTHON*`, and of the environment only what is listed here stays.
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

from etbuild.errors import InputError, Problem

ARITHMETIC = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""PyTorch and MKL would choose by the processor: calibration and random weights would give other bytes elsewhere."""

FIXED = {
    "PYTHONHASHSEED": "0",  # or the order of a set of strings in a model would be another in each process
    "PYTHONSAFEPATH": "1",  # what lies in the current directory is no package of the toolchain
    "PYTHONUTF8": "1",  # or a text that a model reads would depend on the locale
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",  # caches of PyTorch are no input
    **ARITHMETIC,
}
"""The variables that have one value in every build."""

# What else of the environment stays: who and where the user is, how to write to the terminal, how to reach the network,
# how many threads and which device to use, and where tools lie: SDKs of vendors are found by variables such as
# `QNN_SDK_ROOT` and `CUDA_HOME`.
_STAYS = re.compile(
    r"""PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TMP|TEMP|TZ|LANG|LANGUAGE|LC_\w+|ETBUILD_\w+
    |TERM|COLORTERM|NO_COLOR|FORCE_COLOR|COLUMNS|LINES
    |(?:HTTP|HTTPS|FTP|ALL|NO)_PROXY|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|\w+_OFFLINE
    |\w+_NUM_THREADS|\w+_VISIBLE_DEVICES|CC|CXX|FLATC_EXECUTABLE|ANDROID_NDK|LD_PRELOAD
    |PYTHONDONTWRITEBYTECODE|PYTHONIOENCODING
    |(?!PYTHON)\w+_(?:ROOT|HOME|DIR|DIRS|PATH|SDK)""",
    re.VERBOSE | re.IGNORECASE,
)
_DROPPED = "ETBUILD_DROPPED_VARIABLES"
_MAIN = Path(__file__).parents[1] / "__main__.py"


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that builds, made of a user's. One that is settled stays as it is."""
    stays = {name: value for name, value in given.items() if stays_set(name)}
    dropped = sorted(given.keys() - stays.keys() - FIXED.keys() - {"PYTHONPATH"})
    # A process that is settled has the names of its user, and may have set others itself.
    if dropped and not FIXED.items() <= given.items():
        stays[_DROPPED] = "=".join(dropped)  # no name has this character
    paths = os.pathsep.join(map(str, python_path(given)))
    return {**stays, **({"PYTHONPATH": paths} if paths else {}), **FIXED}


def stays_set(name: str) -> bool:
    """Whether a process that builds sees the value that its user has given to an environment variable."""
    return _STAYS.fullmatch(name) is not None


def dropped() -> list[str]:
    """The names of the user's environment variables that this process, which is settled, does not see."""
    return os.environ.get(_DROPPED, "").split("=")


def command(arguments: Iterable[str]) -> list[str]:
    """The command that runs this driver in such a process, given its arguments.

    Python's option `-I` would also leave out `PYTHONHASHSEED`.
    """
    no_user_site = [] if _in_user_site() else ["-s"]
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, "-S", *no_user_site, *safe_path, str(_MAIN), *arguments]


def is_settled() -> bool:
    """Whether this process was started so."""
    return sys.flags.no_site == 1 and FIXED.items() <= os.environ.items()


def python_path(given: Mapping[str, str] = os.environ) -> list[Path]:
    """The directories of PYTHONPATH in which all that can be imported belongs to distributions, which the key holds.

    From others a module could hide an installed one, and no key would tell.
    """
    return [place for place in _python_path(given) if _stranger(place) is None]


def check_packages() -> None:
    """Whether a process that builds finds PyTorch, and where it does not look. Imports nothing.

    Raises:
        InputError: PyTorch lies where builds do not look.
    """
    found = importlib.util.find_spec("torch")
    torch = Path(found.origin).parent if found is not None and found.origin else None
    for place in _python_path(os.environ):
        stranger = _stranger(place)
        if stranger is None or _MAIN.is_relative_to(place):
            continue
        why = f"`{stranger}` there belongs to no installed package, so that no key holds its content"
        if torch is not None and torch.parent == place.resolve():
            hint = "install etbuild, torch and executorch together, such as into a virtual environment"
            raise InputError([Problem(f"builds do not look into {place}, a directory of PYTHONPATH: {why}", hint=hint)])
        print(
            f"note: builds do not look into {place}, a directory of PYTHONPATH: {why}. Sources are found with "
            f"`--root {place}`",
            file=sys.stderr,
        )


def _python_path(given: Mapping[str, str]) -> list[Path]:
    return [Path(place).absolute() for place in given.get("PYTHONPATH", "").split(os.pathsep) if place]


def _stranger(place: Path) -> str | None:
    """A file or directory that can be imported from here and belongs to no distribution here, or that hides a module of
    Python's own."""
    distributions = importlib.metadata.distributions(path=[str(place)])
    records = [distribution.read_text("RECORD") or "" for distribution in distributions]
    owned = {re.split("[/,]", row, maxsplit=1)[0] for record in records for row in record.splitlines()}
    for entry in sorted(place.iterdir()) if place.is_dir() else []:
        name, is_module = entry.name.partition(".")[0], entry.suffix in (".py", ".pyc", ".so")
        is_package = entry.is_dir() and entry.name.isidentifier() and entry.name not in ("__pycache__", "bin")
        if not (is_package or is_module):
            continue
        if entry.name not in owned or name in sys.stdlib_module_names or name in ("sitecustomize", "usercustomize"):
            return entry.name
    return None


def _in_user_site() -> bool:
    """Whether the toolchain is installed for its user alone, below the home directory."""
    if not site.ENABLE_USER_SITE:
        return False
    found = importlib.util.find_spec("torch")
    return found is not None and Path(found.origin or "").is_relative_to(site.getusersitepackages())
