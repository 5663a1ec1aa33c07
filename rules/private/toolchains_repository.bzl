"""The repository rule toolchains_repository: a hub with a `toolchain()` for each toolchain of packages.

It downloads nothing, and does not need the packages: Bazel reads it to choose a toolchain.
"""

load(":package_facts.bzl", "PLATFORMS")
load(":platforms.bzl", "host_platform")

_BUILD = """\
load("@rules_executorch//toolchain:drivers.bzl", "registered_toolchains", "toolchain_of_packages")
load(":toolchains.bzl", "DEFAULT", "TOOLCHAINS")

package(default_visibility = ["//visibility:public"])

exports_files(["toolchains.bzl"])

# The driver of a toolchain is `etbuild_NAME`. That of the default one is @rules_executorch//toolchain:etbuild.
[toolchain_of_packages(
    name = "executorch_" + each.name,
    driver = "etbuild_" + each.name,
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

def _toolchains_repository_impl(repository_ctx):
    here = host_platform(repository_ctx)
    toolchains = []
    for name in repository_ctx.attr.names:
        platform = repository_ctx.attr.platforms.get(name) or here
        implementation = ":executorch_" + name
        toolchains.append(_TOOLCHAIN.format(
            name = repr(name),
            repository = repr("@" + packages_of(name)),
            toolchain = repr("@rules_executorch//toolchain:executorch" if name == "default" else "//" + implementation),
            constraints = repr(PLATFORMS.get(platform, [])),
            runs_here = platform == here,
        ))
    repository_ctx.file("toolchains.bzl", _TOOLCHAINS.format(toolchains = "".join(toolchains)), executable = False)
    repository_ctx.file("BUILD", _BUILD, executable = False)
    repository_ctx.file("remote/BUILD", _REMOTE, executable = False)

_toolchains_repository = repository_rule(
    implementation = _toolchains_repository_impl,
    doc = "The toolchains of packages.",
    attrs = {
        "names": attr.string_list(
            doc = "The names of the toolchains, in the order in which Bazel takes them.",
        ),
        "platforms": attr.string_dict(
            doc = "The platform of a toolchain that is for another kind of machine than this one.",
        ),
    },
    configure = True,
)

def toolchains_repository(name, toolchains):
    """Declares the hub.

    Args:
      name: string.
      toolchains: dict of name to platform (empty: this machine), in the order in which Bazel takes them.
    """
    _toolchains_repository(
        name = name,
        names = toolchains.keys(),
        platforms = toolchains,
    )
