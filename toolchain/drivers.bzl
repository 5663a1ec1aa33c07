"""The driver, and a driver for each step of a build."""

load(":etbuild/step_files.bzl", "STEP_FILES")
load(":python_driver.bzl", "python_driver")
load(":steps.bzl", "STEPS", "files_of_step")

def drivers(name, srcs, **kwargs):
    """Declares the driver `NAME`, and the driver `NAME_STEP` of each step.

    Args:
      name: string.
      srcs: list of files, all of the Python package.
      **kwargs: other attributes of `python_driver`.
    """
    python_driver(name = name, srcs = srcs, **kwargs)
    for step in STEPS:
        python_driver(name = "{}_{}".format(name, step), srcs = files_of_step(STEP_FILES, step), **kwargs)
