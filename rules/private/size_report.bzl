"""The rule executorch_size_report: the bytes of programs by folder, and the aspect that finds the programs."""

load("//rules:providers.bzl", "ExecutorchProgramInfo")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":common.bzl", "attribute_options")
load(":driver.bzl", "driver_arguments", "run_driver")

_ProgramsInfo = provider(
    doc = "The programs that a target ships.",
    fields = {"programs": "depset of struct(folder, index): each program's package, and its `NAME.index.json`."},
)

# The attributes with which rules ship files: Bazel's own rules, and those for C++, Python, packages, images and phones.
# With `*`, Bazel would also visit the compilers of each app, and count programs that only tools need.
_ATTRIBUTES = [
    "additional_contents",
    "assets",
    "base",
    "binary",
    "data",
    "deps",
    "embed",
    "exports",
    "extensions",
    "files",
    "frameworks",
    "image",
    "images",
    "implementation_deps",
    "layers",
    "package",
    "program",
    "programs",
    "resources",
    "runtime_deps",
    "src",
    "srcs",
    "structured_resources",
    "tars",
    "tests",
]

def _targets(rule):
    """Returns the targets that these attributes of a target name."""
    found = []
    for name in _ATTRIBUTES:
        value = getattr(rule.attr, name, None)
        if type(value) == "dict":
            value = value.keys() + value.values()
        found += [dep for dep in (value if type(value) == "list" else [value]) if type(dep) == "Target"]
    return found

def _programs_aspect_impl(target, ctx):
    # A program is not shipped with another one that uses its exported methods.
    if ExecutorchProgramInfo in target:
        index = target[ExecutorchProgramInfo].index
        return [_ProgramsInfo(programs = depset([struct(folder = target.label.package, index = index)]))]
    found = [dep[_ProgramsInfo].programs for dep in _targets(ctx.rule) if _ProgramsInfo in dep]
    return [_ProgramsInfo(programs = depset(transitive = found))]

_programs_aspect = aspect(
    implementation = _programs_aspect_impl,
    apply_to_generating_rules = True,  # otherwise it would not see the target of `:net.pte`
    attr_aspects = _ATTRIBUTES,
)

def _program_argument(program):
    return "--program={}={}".format(program.folder, program.index.path)

def _executorch_size_report_impl(ctx):
    programs = depset(transitive = [dep[_ProgramsInfo].programs for dep in ctx.attr.deps])
    indexes = [program.index for program in programs.to_list()]
    if not indexes:
        fail("no target in `deps` is an `executorch_program` or ships one", attr = "deps")
    table = ctx.actions.declare_file(ctx.label.name + ".txt")
    data = ctx.actions.declare_file(ctx.label.name + ".json")
    for output, form in ((table, []), (data, ["--json"])):
        arguments = driver_arguments(ctx, "sizes")
        arguments.add_all(programs, map_each = _program_argument)
        arguments.add_all(attribute_options("depth", "--depth", [ctx.attr.depth]))
        arguments.add_all(form)
        arguments.add(output, format = "--out=%s")
        run_driver(
            ctx,
            arguments,
            inputs = indexes,
            outputs = [output],
            mnemonic = "ExecutorchSizes",
            progress = "Adding up",
        )
    return [DefaultInfo(files = depset([table, data]))]

_SIZE_REPORT_ATTRS = {
    "deps": attr.label_list(
        doc = "Programs, and targets that ship programs, such as apps.",
        allow_empty = False,
        allow_files = True,
        aspects = [_programs_aspect],
        mandatory = True,
    ),
    "depth": attr.int(
        doc = "How many parts of the path of a program's package make a group: with 2, `apps/team_3/gesture` counts for " +
              "`apps/team_3`.",
        default = 1,
    ),
}

executorch_size_report = rule(
    implementation = _executorch_size_report_impl,
    doc = """Adds up the bytes of programs by folder, such as by team.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_program", "executorch_size_report")

executorch_program(
    name = "net",
    srcs = ["model.py"],
    manifest = "net.yaml",
)

executorch_size_report(
    name = "sizes",
    depth = 2,
    deps = [":net"],
)
```

`deps` can also name apps: an aspect finds the programs that they ship, through attributes such as `deps`, `srcs`, `data`,
`assets`, `resources`, `tars` and `image` of any rule. It does not follow `tools`, nor an attribute of a rule of your own with
another name: name such programs in `deps` too.
`bazel build :sizes` writes the table `sizes.txt` and the same as `sizes.json`. A file that several programs share counts once
in a folder and once in all. `etbuild sizes` does the same for a directory.
""",
    attrs = _SIZE_REPORT_ATTRS,
    toolchains = [str(TOOLCHAIN_TYPE)],
)
