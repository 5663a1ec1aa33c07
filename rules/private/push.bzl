"""The rule executorch_push: pushes a package to a registry."""

load("//toolchain:runfiles.bzl", "quoted")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":common.bzl", "attribute_options")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script")
load(":program_arguments.bzl", "located")
load(":registry_names.bzl", "path_error", "repository_error", "tag_error")

_SCRIPT = """\
exec "$(rlocation {driver})" push {arguments} "$@"
"""

def _check(ctx):
    """Fails if the repository or a tag cannot be one. So a wrong name is found before a program is built."""
    errors = [("repository", repository_error(ctx.attr.repository))]
    errors += [("mount_from", path_error(repository)) for repository in ctx.attr.mount_from]
    errors += [("remote_tags", tag_error(tag)) for tag in ctx.attr.remote_tags]
    for attribute, error in errors:
        if error:
            fail(error, attr = attribute)

def _executorch_push_impl(ctx):
    _check(ctx)
    stamped = ctx.attr.stamp == 1 or (ctx.attr.stamp == -1 and ctx.files._stamp)
    stamps = [ctx.info_file, ctx.version_file] if stamped else []  # with the output of --workspace_status_command
    arguments = [located(ctx, "", ctx.file.package), quoted(ctx.attr.repository)]
    options = attribute_options("remote_tags", "--tag", ctx.attr.remote_tags)
    options += attribute_options("mount_from", "--mount-from", ctx.attr.mount_from)
    arguments += [quoted(option) for option in options]
    arguments += [located(ctx, "--tag-file=", file) for file in ctx.files.remote_tags_file]
    arguments += [located(ctx, "--stamp-file=", stamp) for stamp in stamps]
    return driver_script(ctx, _SCRIPT, [ctx.file.package] + ctx.files.remote_tags_file + stamps, arguments = " ".join(arguments))

_PUSH_ATTRS = dict(DRIVER_SCRIPT_ATTRS, **{
    "mount_from": attr.string_list(
        doc = "Other repositories of the registry, which may have files of the package already. The registry then takes " +
              "them from there.",
    ),
    "package": attr.label(
        doc = "The package (`executorch_package`), or another OCI image layout that `etbuild package` wrote.",
        allow_single_file = True,
        mandatory = True,
    ),
    "remote_tags": attr.string_list(
        doc = "Tags of the package in the registry. A tag may hold stamp values: `v-{STABLE_GIT_COMMIT}`. Without tags, " +
              "the package can be pulled by its digest.",
    ),
    "remote_tags_file": attr.label(
        doc = "A text file with more tags, one a line, such as one that a rule of yours writes.",
        allow_single_file = True,
    ),
    "repository": attr.string(
        doc = "The repository: `REGISTRY/REPOSITORY`, such as `registry.example.com/models/net`.",
        mandatory = True,
    ),
    "stamp": attr.int(
        doc = "Whether tags may hold stamp values. `1`: yes. `0`: no; then nothing that has this target among its files " +
              "changes with them. `-1`: if the build has `--stamp`.",
        default = 1,
        values = [-1, 0, 1],
    ),
    "_stamp": attr.label(
        default = Label("//toolchain:stamp"),
    ),
})

executorch_push = rule(
    implementation = _executorch_push_impl,
    doc = """Pushes a package to a registry, when it is run.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_package", "executorch_program", "executorch_push")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)

executorch_package(
    name = "package",
    programs = [":net"],
)

executorch_push(
    name = "push",
    package = ":package",
    remote_tags = [
        "latest",
        "{STABLE_GIT_COMMIT}",
    ],
    repository = "registry.example.com/models/net",
)
```

`bazel run :push` pushes. More options of `etbuild push` can follow:
`bazel run :push -- --registry localhost:5000`. Only files that the registry does not have are sent.

Values for `{STABLE_GIT_COMMIT}` and the like are what the program of Bazel's `--workspace_status_command` prints.
""",
    attrs = _PUSH_ATTRS,
    executable = True,
    toolchains = [str(TOOLCHAIN_TYPE)],
)
