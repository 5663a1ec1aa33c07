"""The command line, and the verbs that build rules run, one in each module. `add` registers the parser; `run` runs the
verb and returns the exit code."""

import os

_MODULES = ("validate", "plan", "export", "lower", "report")
VERBS = tuple(verb for verb in _MODULES if os.path.exists(f"{__path__[0]}/{verb}.py"))  # noqa: PTH110 - at each start
"""The verbs with modules in this package: few in the driver of an action. Plug-ins provide the others."""
SECTIONS: dict[str, dict[str, str]] = {
    "set up": {},
    "build": {"validate": "etbuild validate model.yaml", "plan": "etbuild plan model.yaml"},
    "look at a program": {},
    "run and test": {},
    "ship": {},
}
"""The sections of the help, in their order, with the verbs of this package that they list, each with an example."""
