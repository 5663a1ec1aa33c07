"""The process: `etbuild` and `python -m etbuild`; and `etbuild --persistent_worker`, as Bazel starts a worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ARITHMETIC = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""PyTorch and MKL would choose by the processor: calibration and random weights would give other bytes elsewhere."""

# The order of a set of strings in a model would otherwise be another in each process; and what lies in the current
# directory is no package of the toolchain.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", **ARITHMETIC}


def main() -> int:
    """Runs the command line."""
    if not os.environ.get("PYTHONSAFEPATH") and sys.path[0] in ("", str(Path.cwd())):
        del sys.path[0]  # `python -m` put it there
    from etbuild.cli import main as run

    if sys.argv[1:] == ["--persistent_worker"]:
        from etbuild import worker

        _settle()
        return worker.serve(run)
    return run(settle=_settle)


def _settle() -> None:
    """Starts the process anew, if need be, in an environment that is the same each time. What needs no torch does not
    wait for that."""
    if any(os.environ.get(name) != value for name, value in _ENVIRONMENT.items()):
        command = [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", "etbuild", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_ENVIRONMENT})


if __name__ == "__main__":
    sys.exit(main())
