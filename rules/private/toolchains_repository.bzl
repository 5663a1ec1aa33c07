"""The repository rule toolchains_repository: a hub with a `toolchain()` for each toolchain of packages.

It downloads nothing, and does not ask for the packages: Bazel reads it to choose a toolchain.
"""

load(":compat.bzl", "watch")
load(":platforms.bzl", "PLATFORMS", "host_platform")

_BUILD = """\
load("@rules_executorch//toolchain:drivers.bzl", "registered_toolchains", "toolchain_of_packages")
load(":toolchains.bzl", "DEFAULT", "TOOLCHAINS")

package(default_visibility = ["//visibility:public"])

# The driver of a toolchain is `etbuild_NAME`. That of the default one is @rules_executorch//toolchain:etbuild.
[toolchain_of_packages(
    name = "executorch_" + each.name,
    driver = "etbuild_" + each.name,
    package_names = each.package_names,
    repository = each.repository,
) for each in TOOLCHAINS if each != DEFAULT]

registered_toolchains("toolchain", TOOLCHAINS)
"""

_REMOTE = """\
load("@rules_executorch//toolchain:drivers.bzl", "registered_toolchains")
load("//:toolchains.bzl", "TOOLCHAINS")

package(default_visibility = ["//visibility:public"])

# For remote executors, where the packages are not unpacked.
registered_toolchains("toolchain", TOOLCHAINS, remote = True)
"""

_TOOLCHAINS = '''\
"""The toolchains of packages. Made by rules_executorch."""

# In the order in which Bazel takes them.
TOOLCHAINS = [
{toolchains}]

# The one that needs no `executorch.toolchain`.
DEFAULT = [each for each in TOOLCHAINS if each.name == "default"][0]
'''

_TOOLCHAIN = """\
    struct(
        name = {name},
        repository = {repository},
        toolchain = {toolchain},
        # The constraints of machines that the packages run on.
        exec_compatible_with = {constraints},
        # Whether the packages are unpacked on this machine.
        runs_here = {runs_here},
        # The names of the packages in its locks.
        package_names = {packages},
    ),
"""

def packages_of(name):
    """Returns the name of the repository with the packages of a toolchain.

    Args:
      name: string, the name of the toolchain.

    Returns:
      string.
    """
    return "rules_executorch_packages" + ("" if name == "default" else "_" + name)

def _names_in(lock):
    """Returns the names of the packages in a lock, as indexes write them: `typing-extensions`."""
    names = []
    for line in lock.split("\n"):
        name, pinned, _ = line.partition("==")
        if pinned and line[0] not in " #-":
            names.append(name.partition("[")[0].strip().lower().replace("_", "-").replace(".", "-"))
    return names

def _locked_packages(repository_ctx):
    """Returns the names of the packages that each toolchain has, sorted."""
    names = {name: {} for name in repository_ctx.attr.names}
    for lock, toolchains in repository_ctx.attr.locks.items():
        locked = _names_in(repository_ctx.read(watch(repository_ctx, lock)))
        for toolchain in toolchains.split(" "):
            names[toolchain].update({name: True for name in locked})
    return {name: sorted(found) for name, found in names.items()}

def _toolchains_repository_impl(repository_ctx):
    here = host_platform(repository_ctx)
    packages = _locked_packages(repository_ctx)
    toolchains = []
    for name in repository_ctx.attr.names:
        platform = repository_ctx.attr.platforms.get(name) or here
        implementation = ":executorch_" + name
        toolchains.append(_TOOLCHAIN.format(
            name = repr(name),
            repository = repr("@" + packages_of(name)),
            toolchain = repr("@rules_executorch//toolchain:executorch" if name == "default" else "//" + implementation),
            constraints = repr(PLATFORMS.get(platform, [])),
            packages = repr(packages[name]),
            runs_here = platform == here,
        ))
    repository_ctx.file("toolchains.bzl", _TOOLCHAINS.format(toolchains = "".join(toolchains)), executable = False)
    repository_ctx.file("BUILD", _BUILD, executable = False)
    repository_ctx.file("remote/BUILD", _REMOTE, executable = False)

_toolchains_repository = repository_rule(
    implementation = _toolchains_repository_impl,
    doc = "The toolchains of packages.",
    attrs = {
        "locks": attr.label_keyed_string_dict(
            doc = "The locks, each with the names of the toolchains that have its packages, with spaces between them.",
            allow_files = True,
        ),
        "names": attr.string_list(
            doc = "The names of the toolchains, in the order in which Bazel takes them.",
        ),
        "platforms": attr.string_dict(
            doc = "The platform of a toolchain that is for another kind of machine than this one.",
        ),
    },
    configure = True,
)

def toolchains_repository(name, toolchains, locks):
    """Declares the hub.

    Args:
      name: string.
      toolchains: dict of name to platform (empty: this machine), in the order in which Bazel takes them.
      locks: dict of name to list of labels, the locks of each toolchain.
    """
    by_lock = {}
    for toolchain, labels in locks.items():
        for label in labels:
            by_lock.setdefault(label, []).append(toolchain)
    _toolchains_repository(
        name = name,
        locks = {label: " ".join(names) for label, names in by_lock.items()},
        names = toolchains.keys(),
        platforms = toolchains,
    )
