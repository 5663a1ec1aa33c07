"""The steps of a build that have a driver of their own, with the files that they run: changes of other files rebuild nothing."""

# The verbs of their actions.
STEPS = ["plan", "export", "lower", "compare", "report"]

# Steps whose files an action needs, in addition to those of its own. Lowering exports methods whose export has to have their
# weights, and the report names the digests of the files that made the program.
_NEEDS = {
    "compare": ["export"],
    "lower": ["export"],
    "report": ["export", "lower"],
}

def files_of_step(table, step):
    """Returns the files of an action: those of its steps, for programs with any parts.

    Args:
      table: dict, `STEP_FILES`.
      step: string, one of `STEPS`.

    Returns:
      list of paths such as `etbuild/build.py`, sorted.
    """
    wanted = {each: True for each in [step] + _NEEDS.get(step, [])}
    return sorted(["etbuild/step_files.bzl"] + [
        file
        for file, steps in table.items()
        if [each for each in steps if each.split("/")[0] in wanted]
    ])
