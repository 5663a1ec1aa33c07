"""The verbs of the command line, one in each module. `add` registers the parser; `run` runs the verb and returns the
exit code."""
