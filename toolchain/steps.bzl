"""The steps of a build. Each has a driver with the packages that it runs, so a change of others does not run it
again."""

load("//rules/private:facts.bzl", "PLUGINS", "PLUGINS_OF_STEPS")
load(":etbuild/step_packages.bzl", "COMMAND_LINE_PACKAGES", "STEP_PACKAGES")

# The verbs of their actions.
STEPS = ["plan", "export", "lower", "compare", "report"]

# For each step, further steps whose packages its action needs. A failed comparison lowers parts of a method again, to
# find the wrong operator. The report names the digests of the code that made the program.
_NEEDS = {
    "compare": ["lower"],
    "report": ["export", "lower"],
}

# What every step needs of the package `manifest`: types of its data, and the places that messages name.
_OF_ALL_STEPS = ["manifest/__init__.py", "manifest/positions.py", "manifest/sections.py"]

# The verbs, of which an action runs its own.
_VERBS = ["cli/{}.py".format(verb) for verb in STEPS + ["validate"]]

# The schema of manifests, which only planning reads: most edits to it change descriptions.
_SCHEMA_OF_MANIFESTS = "schemas/model.schema.json"

def files_of_step(files, step):
    """Returns the files of an action: those of the packages that its steps run, and of those around all steps.

    Plug-ins that only some programs use are not among them. The action that plans has what such plug-ins say about themselves,
    to tell which of them a program needs.

    Args:
      files: list of paths such as `etbuild/lower/passes.py`, all files of the driver.
      step: string, one of `STEPS`.

    Returns:
      list of some of these paths, sorted.
    """
    wanted = [step] + _NEEDS.get(step, [])
    return sorted([file for file in files if _is_needed(file, wanted)])

def files_of_plugin(files, plugin):
    """Returns the files of a plug-in that a target can name.

    Args:
      files: list of paths such as `etplugins/lora/config.py`, all files of the driver.
      plugin: string, one of `PLUGINS`.

    Returns:
      list of some of these paths, sorted.
    """
    return sorted([file for file in files if file.startswith("etplugins/{}/".format(plugin))])

def _is_needed(file, steps):
    place, _, path = file.partition("/")
    package = path.partition("/")[0] if "/" in path else ""
    if place == "etplugins" and package in PLUGINS:
        return path.endswith("/plugin.json") and steps[0] == "plan"
    if place == "etplugins":
        return not package or steps[0] in PLUGINS_OF_STEPS.get(package, [])
    if place != "etbuild":
        return False
    if path == _SCHEMA_OF_MANIFESTS:
        return steps[0] == "plan"
    if path in _VERBS:
        return path == "cli/{}.py".format(steps[0])
    around = path in _OF_ALL_STEPS or package not in STEP_PACKAGES and package not in COMMAND_LINE_PACKAGES
    return around or bool([step for step in STEP_PACKAGES.get(package, []) if step in steps])
