"""The rule executorch_package: programs as a package for a registry."""

load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":common.bzl", "attribute_options")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":program_attribute.bzl", "program_info", "programs_attribute")

def _package(ctx, output, option):
    """Declares ExecutorchPackage, which writes the package as a directory or as a tar file.

    Args:
      ctx: the context of the rule.
      output: File, what is written.
      option: string, the option of the driver that names it.
    """
    programs = [program_info(program, "programs") for program in ctx.attr.programs]
    arguments = driver_arguments(ctx, "package")
    arguments.add_all([program.index for program in programs])
    annotations = ["{}={}".format(key, value) for key, value in sorted(ctx.attr.annotations.items())]
    arguments.add_all(attribute_options("annotations", "--annotation", annotations))
    arguments.add_all(attribute_options("builder", "--builder", [ctx.attr.builder] if ctx.attr.builder else []))
    arguments.add_all([output], format_each = option + "=%s", expand_directories = False)
    run_driver(
        ctx,
        arguments,
        inputs = [file for program in programs for file in _files(program)],
        outputs = [output],
        mnemonic = "ExecutorchPackage",
        progress = "Packaging",
    )

def _files(program):
    files = [program.index, program.pte, program.report] + program.named_data.values()
    return files + ([program.tokenizer] if program.tokenizer else [])

def _executorch_package_impl(ctx):
    layout = ctx.actions.declare_directory(ctx.label.name + ".oci")
    tar = ctx.actions.declare_file(ctx.label.name + ".tar")
    _package(ctx, layout, "--out")
    _package(ctx, tar, "--tar")
    return [
        DefaultInfo(files = depset([layout]), runfiles = ctx.runfiles([layout])),
        OutputGroupInfo(layout = depset([layout]), tar = depset([tar])),
    ]

_PACKAGE_ATTRS = {
    "annotations": attr.string_dict(
        doc = "Annotations of the package, by key. The OCI image specification defines keys that begin with " +
              "`org.opencontainers.image`.",
    ),
    "builder": attr.string(
        doc = "A URI for who builds the programs, for their provenance, such as `https://ci.example.com/models`.",
    ),
    "programs": programs_attribute(
        doc = "The programs (`executorch_program`). Each has its own name.",
        allow_empty = False,
        mandatory = True,
    ),
}

executorch_package = rule(
    implementation = _executorch_package_impl,
    doc = """Puts programs into a package for a registry: an OCI image layout.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_package", "executorch_program")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)

executorch_package(
    name = "package",
    annotations = {"org.opencontainers.image.source": "https://git.example.com/models"},
    programs = [":net"],
)
```

`bazel build :package` writes the directory `package.oci`, which skopeo, oras and crane can read. A file that several
programs share is in it once. `etbuild package` makes the same bytes. [Packages](../packages.md) describes the format.

Output groups, for `--output_groups=GROUP`:

- `layout`: the default output.
- `tar`: the same files as `package.tar`.
""",
    attrs = _PACKAGE_ATTRS,
    toolchains = [str(TOOLCHAIN_TYPE)],
)
