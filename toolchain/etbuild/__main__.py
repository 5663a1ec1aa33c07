"""The process: `etbuild` and `python -m etbuild`."""

from __future__ import annotations

import os
import sys

# The order of a set of strings in a model would otherwise be another in each process; and what lies in the current
# directory is no package of the toolchain.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}


def main() -> int:
    """Runs the command line, for a build in an environment that is the same each time."""
    building = sys.argv[1:2] in (["build"], ["lower"])
    if building and any(os.environ.get(name) != value for name, value in _ENVIRONMENT.items()):
        command = [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", "etbuild", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_ENVIRONMENT})
    from etbuild.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
