"""Records the installed files that a program was built with, so that a hit of the cache only compares their times.

`check_installed` looks at every file of every package. That takes half as long as a whole hit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from etbuild.key import distributions
from etbuild.key.toolchain import check_installed, distributions_of
from etbuild.plugins import driver


def record(path: Path, environment: str, packages: Iterable[str], whole: bool, since: int) -> None:
    """Writes the sizes and times of installed files.

    Args:
        path: The file to write.
        environment: A digest of all installed packages, and of the code that checked the program.
        packages: Top-level names that the sources import.
        whole: Whether this process, with those that it has forked, ran all steps. Then modules that nothing has
            imported are left out, and packages without an imported module. Nobody knows what a step has imported whose
            result comes from the cache.
        since: When the build began, in ns. If a file changed later, the next build has to look at all files.
    """
    from etbuild.processes import forked  # importing it takes a while, and a hit does not need it

    imported = {file for file in forked.files_of(sys.modules) | forked.loaded if not file.startswith(driver())}
    files = set(imported)
    for name in distributions_of(packages):
        listed = set(distributions.files(name))
        modules = {file for file in listed if file.endswith(".py")}
        if not whole:
            files |= listed
        elif not modules or modules & imported:  # a package without modules may consist of shared libraries
            files |= listed - modules
    times = _times(sorted(files))
    known = all(time < since for _, time in times.values())
    facts = {"environment": environment, "places": distributions.places(), "times": times if known else None}
    path.write_text(json.dumps(facts), "utf-8")


def check(path: Path, environment: str, packages: Iterable[str]) -> bool:
    """Does what `check_installed` does, if a recorded file has changed, or if this process finds packages elsewhere.

    Args:
        path: The file that `record` wrote.
        environment: A digest of all installed packages, and of the code that checked the program.
        packages: Top-level names that the sources import.

    Returns:
        Whether the same packages are installed and the same code checks. Otherwise the program has to be built again.

    Raises:
        InputError: A file was changed after its installation.
    """
    recorded = json.loads(path.read_text("utf-8"))
    if recorded["environment"] != environment:
        return False
    times = recorded["times"]
    if times is None or recorded["places"] != distributions.places() or _times(times) != times:
        check_installed(packages)
    return True


def _times(files: Iterable[str]) -> dict[str, list[int]]:
    """The size and the time in ns of each file. A file that is gone has none."""
    times = {}
    for file in files:
        try:
            status = os.stat(file)  # noqa: PTH116 - there are thousands of files, and pathlib is slower
        except OSError:
            times[file] = [0, 0]
        else:
            times[file] = [status.st_size, status.st_mtime_ns]
    return times
