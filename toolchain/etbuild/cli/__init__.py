"""The command line, and the verbs that build rules run, one in each module. `add` registers the parser; `run` runs the
verb and returns the exit code."""

VERBS = ("validate", "plan", "export", "lower", "compare", "report", "etrecord", "runtime")
"""The verbs whose modules are in this package. All other verbs are in `etkit.cli`."""
