"""The verbs of the command line, one a file: `add` registers its parser, `run` does it and returns the exit code."""
