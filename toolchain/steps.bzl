"""The steps of a build. Each has a driver with the packages that it runs, so a change of others does not run it
again."""

load(":etbuild/step_packages.bzl", "COMMAND_LINE_PACKAGES", "PLUGINS_OF_STEPS", "STEP_PACKAGES")

# The verbs of their actions.
STEPS = ["plan", "export", "lower", "compare", "report"]

# For each step, further steps whose packages its action needs. Code around steps, and plug-ins, use types of manifests.
# A failed comparison lowers parts of a method again, to find the wrong operator. The report names the digests of the
# code that made the program.
_NEEDS = {
    "compare": ["lower", "plan"],
    "export": ["plan"],
    "lower": ["plan"],
    "report": ["export", "lower"],
}

def files_of_step(files, step):
    """Returns the files of an action: those of the packages that its steps run, and of those around all steps.

    Args:
      files: list of paths such as `etbuild/lower/passes.py`, all files of the driver.
      step: string, one of `STEPS`.

    Returns:
      list of some of these paths, sorted.
    """
    wanted = [step] + _NEEDS.get(step, [])
    return sorted([file for file in files if _is_needed(file, wanted)])

def _is_needed(file, steps):
    place, _, path = file.partition("/")
    package = path.partition("/")[0] if "/" in path else ""
    if place != "etbuild":
        return place == "etplugins" and steps[0] in PLUGINS_OF_STEPS.get(package, steps)
    around = package not in STEP_PACKAGES and package not in COMMAND_LINE_PACKAGES
    return around or bool([step for step in STEP_PACKAGES.get(package, []) if step in steps])
