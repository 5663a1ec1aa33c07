"""The command line, and the verbs that build rules run, one in each module. `add` registers the parser; `run` runs the
verb and returns the exit code."""

import os

_MODULES = ("validate", "plan", "export", "lower", "report", "etrecord", "runtime")
VERBS = tuple(verb for verb in _MODULES if os.path.exists(f"{__path__[0]}/{verb}.py"))  # noqa: PTH110 - at each start
"""The verbs whose modules are in this package: the driver of an action has few. All others are in `etkit.cli` and in
plug-ins."""
