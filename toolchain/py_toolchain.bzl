"""The macro executorch_py_toolchain: a toolchain with the Python packages of the workspace."""

load("//rules/private:macros.bzl", "common_attributes", "helper_attributes")
load("//rules/private:package_facts.bzl", "REQUIRED")
load(":drivers.bzl", "drivers")
load(":python_of_build.bzl", "python_of_build")
load(":split_packages.bzl", "installed_packages")

def executorch_py_toolchain(name, deps = [], hub = None, interpreter = None, **kwargs):
    """A toolchain that builds programs with the Python packages of your workspace, so that it has one torch.

    <!-- snippet part of: sed 's/"executorch_program", //' $EXAMPLES/pypi/BUILD -->
    ```starlark
    load("@rules_executorch//rules:defs.bzl", "executorch_py_toolchain")

    executorch_py_toolchain(
        name = "with_our_torch",
        hub = "@pypi",
    )

    toolchain(
        name = "toolchain",
        toolchain = ":with_our_torch",
        toolchain_type = "@rules_executorch//toolchain:toolchain_type",
    )
    ```

    Register the toolchain with `register_toolchains("//:toolchain")`. One action packs the packages, since an action with
    45,000 inputs starts slowly. It runs again when a package changes, and then every program is built again.

    Args:
      name: string.
      deps: list of labels, `py_library` or other targets that provide `PyInfo`: packages that the models import, and those of the
        extras that are used. What they depend on is there too. Without `hub`, also the packages that the driver needs.
      hub: string, the repository of the workspace's lock, such as the `hub_name` of rules_python's `pip.parse`. The packages that
        the driver needs (`@rules_executorch//toolchain:requirements.in`) are taken from there by their names.
      interpreter: label of the Python that runs the driver, with its standard library among its files. Default: the Python
        toolchain that Bazel resolves for the execution platform, such as rules_python's. The packages have to be for its
        version.
      **kwargs: attributes that every target has, such as `visibility`.
    """
    if hub:
        deps = deps + ["{}//{}".format(hub, package.replace("-", "_")) for package in REQUIRED]
    python = name + ".python"
    helper = helper_attributes(kwargs)
    python_of_build(name = python, interpreter = interpreter, **helper)
    installed_packages(name = name + ".packages", deps = deps, python = ":" + python, **helper)
    drivers(
        name,
        driver = name + ".driver",
        toolchain_attributes = common_attributes(kwargs),
        packages = ":{}.packages".format(name),
        python = ":" + python,
        **helper
    )
