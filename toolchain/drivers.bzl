"""The driver, and a driver for each step of a build."""

load(":driver_sources.bzl", "driver_plugins", "driver_sources")
load(":python_driver.bzl", "python_driver")
load(":split_packages.bzl", "split_packages")
load(":steps.bzl", "STEPS", "files_of_step")
load(":toolchain.bzl", "TOOLCHAIN_TYPE", "executorch_toolchain")

# Labels, and not strings: another repository calls these macros too.
_NAME = Label("//toolchain:name")
_NO_NAME = Label("//toolchain:no_name")
_SOURCES = Label("//toolchain:sources")
_PLUGINS = Label("//toolchain:sources_plugins")
_SOURCES_OF_STEP = {step: Label("//toolchain:sources_" + step) for step in STEPS}

def sources_of_drivers(name, srcs, main):
    """Declares the sources `NAME`, the sources `NAME_STEP` of each step, and the plug-ins `NAME_plugins`.

    Args:
      name: string.
      srcs: list of files, all of the Python package.
      main: label, the `etbuild/__main__.py` of the package.
    """
    driver_sources(name = name, srcs = srcs, main = main, texts = True)
    driver_plugins(name = name + "_plugins", srcs = srcs, main = main)
    for step in STEPS:
        driver_sources(name = "{}_{}".format(name, step), srcs = files_of_step(srcs, step), main = main)

def drivers(name, driver, toolchain_attributes = {}, **kwargs):
    """Declares the toolchain `NAME`, its driver `DRIVER`, and the driver `DRIVER.STEP` of each step.

    The names of toolchains have no `.`, so that the targets of one do not have the names of another's.

    Args:
      name: string.
      driver: string.
      toolchain_attributes: dict, more attributes of the toolchain.
      **kwargs: attributes of `python_driver`.
    """
    python_driver(name = driver, sources = _SOURCES, **kwargs)
    for step in STEPS:
        python_driver(name = "{}.{}".format(driver, step), sources = _SOURCES_OF_STEP[step], **kwargs)
    executorch_toolchain(
        name = name,
        driver = ":" + driver,
        plugins = _PLUGINS,
        supports_workers = True,
        **dict(toolchain_attributes, **{step: ":{}.{}".format(driver, step) for step in STEPS})
    )

def toolchain_of_packages(name, driver, repository):
    """Declares the toolchain `NAME` for the packages of a repository, and `NAME.split` for machines without their repository.

    Args:
      name: string.
      driver: string, the name of the driver.
      repository: string such as `@rules_executorch_packages`, a `packages_repository`.
    """
    drivers(
        name,
        driver = driver,
        interpreter = repository + "//:python.json",
        packages = repository + "//:packages",
    )
    split_packages(
        name = driver + ".packages",
        packages = repository + "//:packages",
    )
    drivers(
        name + ".split",
        driver = driver + ".split",
        packages = ":{}.packages".format(driver),
    )

def named_toolchain(name, toolchain_name, toolchain, exec_compatible_with):
    """Declares a `toolchain()` that Bazel can choose if the flag `//toolchain:name` has its name, or is empty.

    Args:
      name: string.
      toolchain_name: string, its name for the flag.
      toolchain: label of an `executorch_toolchain`.
      exec_compatible_with: list of labels, the constraints of the machines that its packages run on.
    """
    native.config_setting(
        name = name + ".named",
        flag_values = {_NAME: toolchain_name},
    )
    native.alias(
        name = name + ".wanted",
        actual = select({
            ":{}.named".format(name): ":{}.named".format(name),
            "//conditions:default": _NO_NAME,
        }),
    )
    native.toolchain(
        name = name,
        exec_compatible_with = exec_compatible_with,
        target_settings = [":{}.wanted".format(name)],
        toolchain = toolchain,
        toolchain_type = TOOLCHAIN_TYPE,
    )

def registered_toolchains(name, toolchains, remote = False):
    """Declares the `toolchain()` of each toolchain of packages. Bazel takes them in this order.

    Args:
      name: string, the beginning of their names. The targets of a pattern are registered by their names: NAME00_first,
        NAME01_second.
      toolchains: list of struct, `TOOLCHAINS` of `toolchains_repository`.
      remote: bool, whether they are those for remote executors.
    """
    for number, each in enumerate(toolchains):
        form = ".split" if remote or not each.runs_here else ""
        named_toolchain(
            name = "{}{}{}_{}".format(name, number // 10, number % 10, each.name),
            exec_compatible_with = each.exec_compatible_with,
            toolchain = each.toolchain + form,
            toolchain_name = each.name,
        )
