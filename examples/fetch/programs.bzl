"""A repository with the programs of a package, for workspaces that do not build them."""

def _fetched_programs_impl(repository_ctx):
    package = repository_ctx.attr.package
    if len(package.partition("@sha256:")[2]) != 64:
        # A tag can move, and Bazel would not notice it.
        fail("package = '{}': name the package by its digest, as `etbuild push` prints it".format(package))
    driver = repository_ctx.which("etbuild")
    if not driver:
        fail("etbuild is not on the PATH: install the driver. A pull needs no PyTorch")
    command = [driver, "pull", package, "--out", "."]
    for program in repository_ctx.attr.programs:
        command += ["--program", program]
    done = repository_ctx.execute(command)
    if done.return_code:
        fail("etbuild pull {}:\n{}".format(package, done.stderr))
    repository_ctx.file("BUILD.bazel", "\n".join([_files(repository_ctx, name) for name in repository_ctx.attr.programs]))

def _files(repository_ctx, name):
    # Names do not tell: `net.ios.pte` is another program than `net.pte`.
    index = name + ".index.json"
    artifacts = json.decode(repository_ctx.read(index))["artifacts"]
    return _FILES.format(name = name, srcs = [index] + [artifact["file"] for artifact in artifacts])

_FILES = """\
filegroup(
    name = "{name}",
    srcs = {srcs},
    visibility = ["//visibility:public"],
)
"""

fetched_programs = repository_rule(
    doc = "Fetches programs. `@NAME//:PROGRAM` has the files of one: its `.pte`, its `.ptd` files, index and report.",
    implementation = _fetched_programs_impl,
    attrs = {
        "package": attr.string(
            doc = "`REGISTRY/REPOSITORY@sha256:DIGEST`",
            mandatory = True,
        ),
        "programs": attr.string_list(
            doc = "The names of the programs.",
            mandatory = True,
        ),
    },
    environ = ["PATH"],
)
