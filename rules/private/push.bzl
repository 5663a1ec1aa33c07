"""The rule executorch_push: pushes a package to a registry."""

load("//toolchain:runfiles.bzl", "quoted")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver_script.bzl", "DRIVER_SCRIPT_ATTRS", "driver_script")
load(":program_arguments.bzl", "located")

_SCRIPT = """\
exec "$(rlocation {driver})" push {arguments} "$@"
"""

def _executorch_push_impl(ctx):
    stamps = [ctx.info_file, ctx.version_file]  # what --workspace_status_command printed
    arguments = [located(ctx, "", ctx.file.package), quoted(ctx.attr.repository)]
    arguments += ["--tag=" + quoted(tag) for tag in ctx.attr.remote_tags]
    arguments += ["--mount-from=" + quoted(repository) for repository in ctx.attr.mount_from]
    arguments += [located(ctx, "--stamp-file=", stamp) for stamp in stamps]
    return driver_script(ctx, _SCRIPT, [ctx.file.package] + stamps, arguments = " ".join(arguments))

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
    "repository": attr.string(
        doc = "The repository: `REGISTRY/REPOSITORY`, such as `registry.example.com/models/net`.",
        mandatory = True,
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
