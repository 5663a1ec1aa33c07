"""The rule executorch_program: one manifest becomes one program."""

load(
    "//rules:actions.bzl",
    "TOOLCHAIN_TYPE",
    "export_program",
    "lower_program",
    "plan_program",
    "program_inputs",
    "report_program",
    "verify_program",
)
load("//rules:providers.bzl", "ExecutorchLibraryInfo", "ExecutorchProgramInfo")

def _executorch_program_impl(ctx):
    manifest = ctx.file.manifest
    inputs = program_inputs(
        manifest,
        srcs = ctx.files.srcs,
        libraries = [dep[ExecutorchLibraryInfo] for dep in ctx.attr.deps],
        data = ctx.files.data,
        weights = ctx.files.weights,
        tokenizer = ctx.files.tokenizer,
    )
    plans = plan_program(
        ctx,
        ctx.label.name,
        manifest,
        methods = ctx.attr.methods,
        backends = ctx.attr.backends,
        named_data = ctx.attr.named_data,
        sharded_named_data = ctx.attr.sharded_named_data,
    )
    export = export_program(ctx, plans, inputs)
    lowered = lower_program(ctx, plans, inputs, export)
    verified = [verify_program(ctx, plans, inputs, lowered)] if ctx.attr.verify_reproducible else []
    reported = report_program(ctx, plans, export, lowered, inputs, required = verified)

    tokenizer = [reported.tokenizer] if reported.tokenizer else []
    shipped = [lowered.pte] + lowered.named_data.values() + tokenizer + [reported.index]
    return [
        DefaultInfo(files = depset(shipped), runfiles = ctx.runfiles(shipped)),
        OutputGroupInfo(
            # Later Bazels always build this group, so the checks also run for someone who asks only for the program.
            _validation = depset([reported.report]),
            export = depset([export.directory] + export.exported_methods.values()),
            index = depset([reported.index]),
            named_data = depset(lowered.named_data.values()),
            pte = depset([lowered.pte]),
            report = depset([reported.report]),
            tokenizer = depset(tokenizer),
        ),
        ExecutorchProgramInfo(
            backends = ctx.attr.backends,
            index = reported.index,
            methods = ctx.attr.methods,
            named_data = lowered.named_data,
            pte = lowered.pte,
            report = reported.report,
            tokenizer = reported.tokenizer,
        ),
    ]

PROGRAM_ATTRS = {
    "backends": attr.string_list(
        doc = "All backends that the manifest names. If given, the build fails when the two differ.",
    ),
    "data": attr.label_list(
        doc = "Files that exporting and lowering read, such as example inputs and calibration data. The manifest names a " +
              "file relative to its own directory. It names a file outside of that directory relative to the root of " +
              "the repository.",
        allow_files = True,
    ),
    "deps": attr.label_list(
        doc = "Libraries that `srcs` import (`executorch_library`).",
        providers = [ExecutorchLibraryInfo],
    ),
    "manifest": attr.label(
        doc = "The manifest: a YAML file, described by `schemas/model.schema.json`. Its `name` is the name of this target.",
        allow_single_file = [".yaml", ".yml"],
        mandatory = True,
    ),
    "methods": attr.string_list(
        doc = "All methods of the manifest. If given, the build fails when the two differ. If there are two or more, each " +
              "is lowered by an action of its own: the actions can run at the same time, and an edit to one method lowers " +
              "only that method.",
    ),
    "named_data": attr.string_list(
        doc = "All tags under the manifest's `named_data` that have no `shard_size`. Each becomes the output " +
              "`NAME.TAG.ptd`. The build fails when the two differ.",
    ),
    "sharded_named_data": attr.string_list(
        doc = "All tags under the manifest's `named_data` that have a `shard_size`. Each becomes the output directory " +
              "`NAME.TAG`. The build fails when the two differ.",
    ),
    "srcs": attr.label_list(
        doc = "The program's own Python sources. They are imported as if from a script in the manifest's directory: " +
              "`model.py` beside the manifest is `import model`.",
        allow_files = [".py"],
    ),
    "tokenizer": attr.label_list(
        doc = "The files of the manifest's `tokenizer`, named as those of `data`. They become the output directory " +
              "`NAME.tokenizer`. The build fails when the two differ.",
        allow_files = True,
    ),
    "verify_reproducible": attr.bool(
        doc = "Build the program a second time in another environment, and fail if any byte differs.",
    ),
    "weights": attr.label_list(
        doc = "The files of the manifest's `model.weights`, named as those of `data`. Only lowering reads them, so new " +
              "weights do not run the export again.",
        allow_files = True,
    ),
}

executorch_program = rule(
    implementation = _executorch_program_impl,
    doc = """Builds an ExecuTorch program from a manifest.

```starlark
load("@rules_executorch//rules:defs.bzl", "executorch_program")

executorch_program(
    name = "mlp",
    srcs = ["model.py"],
    manifest = "model.yaml",
    weights = ["mlp.safetensors"],
)
```

`bazel build :mlp` writes `mlp.pte`, `mlp.index.json` (digests of the outputs and of their inputs) and the named data. The
build fails if the manifest is wrong or if one of its checks fails.

Output groups, for `--output_groups=GROUP`:

- `pte`, `named_data`, `tokenizer` and `index`: the default outputs, one kind each.
- `report`: `mlp.report.json`, facts about each method.
- `export`: the exported methods, before they are lowered.
""",
    attrs = PROGRAM_ATTRS,
    provides = [ExecutorchProgramInfo],
    toolchains = [str(TOOLCHAIN_TYPE)],
)
