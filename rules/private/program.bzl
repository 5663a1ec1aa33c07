"""executorch_program: one manifest becomes one program.

Two actions. ExecutorchPlan reduces the manifest to canonical JSON, without torch. ExecutorchLower exports and lowers
from that JSON, not from the YAML: a comment or the order of keys changes what the first reads but not what it writes, so
Bazel does not run the second again.
"""

load("//rules:providers.bzl", "ExecutorchLibraryInfo", "ExecutorchProgramInfo")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":names.bzl", "check_unique", "name_beside", "repository_path")

def _check_distinct(values, attribute):
    seen = {}
    for value in values:
        if value in seen:
            fail("'{}' is listed twice".format(value), attr = attribute)
        if not value or "," in value or "/" in value:
            fail("'{}' is not a name".format(value), attr = attribute)
        seen[value] = True

def _plan(ctx):
    """Declares ExecutorchPlan and returns its plan."""
    manifest = ctx.file.manifest
    plan = ctx.actions.declare_file(ctx.label.name + ".plan.json")

    # Line numbers for the messages of later actions, which look for them beside the plan. No input of theirs.
    positions = ctx.actions.declare_file(ctx.label.name + ".positions.json")

    arguments = driver_arguments(ctx)
    arguments.add(manifest)
    arguments.add("--manifest-name=" + repository_path(manifest))
    arguments.add("--expect-name=" + ctx.label.name)
    if ctx.attr.methods:
        arguments.add("--expect-methods=" + ",".join(ctx.attr.methods))
    if ctx.attr.backends:
        arguments.add("--expect-backends=" + ",".join(ctx.attr.backends))
    arguments.add("--expect-named-data=" + ",".join(ctx.attr.named_data))
    arguments.add(plan, format = "--plan=%s")
    arguments.add(positions, format = "--positions=%s")
    run_driver(
        ctx,
        "plan",
        arguments,
        inputs = [manifest],
        outputs = [plan, positions],
        mnemonic = "ExecutorchPlan",
        progress = "Planning",
    )
    return plan

def _source_argument(source):
    return "--source={}={}".format(source.name, source.file.path)

def _lower(ctx, plan, outputs):
    """Declares ExecutorchLower."""
    sources = [struct(name = name_beside(file, ctx.file.manifest), file = file) for file in ctx.files.srcs]
    data = [struct(name = name_beside(file, ctx.file.manifest), file = file) for file in ctx.files.data]
    check_unique(sources, "srcs")
    check_unique(data, "data")
    libraries = [dep[ExecutorchLibraryInfo] for dep in ctx.attr.deps]

    arguments = driver_arguments(ctx)
    arguments.add(plan)
    arguments.add_all(
        depset(sources, transitive = [library.sources for library in libraries]),
        map_each = _source_argument,
    )
    for entry in data:
        arguments.add("--data={}={}".format(entry.name, entry.file.path))
    arguments.add("-o", outputs[0].dirname)
    run_driver(
        ctx,
        "lower",
        arguments,
        inputs = depset(
            [plan] + ctx.files.srcs + ctx.files.data,
            transitive = [library.files for library in libraries],
        ),
        outputs = outputs,
        mnemonic = "ExecutorchLower",
        progress = "Lowering",
    )

def _executorch_program_impl(ctx):
    for attribute in ["methods", "backends", "named_data"]:
        _check_distinct(getattr(ctx.attr, attribute), attribute)
    name = ctx.label.name
    pte = ctx.actions.declare_file(name + ".pte")
    named_data = {tag: ctx.actions.declare_file("{}.{}.ptd".format(name, tag)) for tag in ctx.attr.named_data}
    index = ctx.actions.declare_file(name + ".index.json")
    report = ctx.actions.declare_file(name + ".report.json")
    _lower(ctx, _plan(ctx), [pte] + named_data.values() + [index, report])

    shipped = [pte] + named_data.values() + [index]
    return [
        DefaultInfo(files = depset(shipped), runfiles = ctx.runfiles(shipped)),
        OutputGroupInfo(
            index = depset([index]),
            named_data = depset(named_data.values()),
            pte = depset([pte]),
            report = depset([report]),
        ),
        ExecutorchProgramInfo(
            backends = ctx.attr.backends,
            index = index,
            methods = ctx.attr.methods,
            named_data = named_data,
            pte = pte,
            report = report,
        ),
    ]

executorch_program = rule(
    implementation = _executorch_program_impl,
    doc = """Builds a program, its named data and its index from a manifest.

    executorch_program(
        name = "mlp",
        srcs = ["model.py"],
        manifest = "model.yaml",
    )

Output groups: `pte`, `named_data`, `index`, `report`.
""",
    attrs = {
        "backends": attr.string_list(
            doc = "The backends of the manifest. Checked against it where given.",
        ),
        "data": attr.label_list(
            doc = "Weights and other files, by the names that the manifest gives them: relative to the manifest, or to " +
                  "the repository for a file that does not lie below it.",
            allow_files = True,
        ),
        "deps": attr.label_list(
            doc = "Libraries of model code, imported by their paths in their repository.",
            providers = [ExecutorchLibraryInfo],
        ),
        "manifest": attr.label(
            doc = "The manifest: YAML, described by schemas/model.schema.json. Its `name` is this target's name.",
            allow_single_file = [".yaml", ".yml"],
            mandatory = True,
        ),
        "methods": attr.string_list(
            doc = "The methods of the manifest. Checked against it where given.",
        ),
        "named_data": attr.string_list(
            doc = "The tags of the manifest's `named_data`, always checked: each becomes an output.",
        ),
        "srcs": attr.label_list(
            doc = "The program's own Python sources, imported as from a script beside the manifest.",
            allow_files = [".py"],
        ),
    },
    provides = [ExecutorchProgramInfo],
    toolchains = [str(TOOLCHAIN_TYPE)],
)
