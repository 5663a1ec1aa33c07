"""The rule executorch_program: one manifest becomes one program. Users call the macro in programs.bzl."""

load("@rules_executorch_toolchains//:toolchains.bzl", "TOOLCHAINS")
load(
    "//rules:providers.bzl",
    "ExecutorchExportInfo",
    "ExecutorchLoweredInfo",
    "ExecutorchProgramInfo",
    "ExecutorchProgramInputsInfo",
)
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":actions.bzl", "BAZEL", "check", "program_inputs", "run_actions")
load(":bazel4.bzl", "RUNS_VALIDATIONS", "published")
load(":common.bzl", "BOTH_EXPORTS", "NOTHING_LOWERED", "attributes_error", "export_error", "name_with_variant")
load(":configuration.bzl", "configuration_of_program")
load(":driver.bzl", "EXEC_GROUPS", "MEMORY", "toolchain_of")
load(":facts.bzl", "ANY_PLUGIN", "INPUTS")
load(":library.bzl", "LIBRARIES", "check_packages", "covered_sources", "library_of", "python_library")
load(":names.bzl", "place", "repository_path")
load(":program_actions.bzl", "actions_on_request", "compiles_weights", "export_actions", "program_actions", "template_actions")
load(":program_attribute.bzl", "program_attribute", "program_info")

def _target(ctx):
    """Returns what a target says, for `program_actions.bzl`, and fails if that is wrong."""
    attributes = ctx.attr
    manifest, variant = ctx.file.manifest, attributes.variant
    inputs = program_inputs(ctx, manifest, [library_of(ctx, dep) for dep in attributes.deps])
    check(BOTH_EXPORTS if attributes.export and attributes.lowered else None)
    lowered = program_info(attributes.lowered, "lowered", ExecutorchLoweredInfo) if attributes.lowered else None
    exported = program_info(attributes.export, "export", ExecutorchExportInfo) if attributes.export else None
    templates = lowered.templates if lowered else None
    shared = attributes.lowered[ExecutorchExportInfo] if lowered else exported
    target = struct(
        name = name_with_variant(ctx.label.name, variant),
        backends = sorted(attributes.backends),
        export = shared,
        input_names = {
            attribute: [entry.name + ("/" if entry.file.is_directory else "") for entry in getattr(inputs, attribute)]
            for attribute in INPUTS
        },
        inputs = inputs,
        manifest = manifest,
        manifest_name = attributes.manifest_name,
        manifest_path = repository_path(manifest),
        methods = sorted(attributes.methods),
        named_data = sorted(attributes.named_data),
        parameters = attributes.parameters,
        plugins = sorted(attributes.plugins),
        sharded_named_data = sorted(attributes.sharded_named_data),
        templates = templates,
        variant = variant,
        verify_reproducible = attributes.verify_reproducible,
    )
    check(attributes_error(target))
    check_packages(ctx.label, inputs.installed, toolchain_of(ctx, "export"))  # the first step that imports the sources
    if shared:
        check(export_error(target, inputs.sources.to_list(), target.export.sources.to_list(), place))
    check(NOTHING_LOWERED if templates == [] else None)
    return target

def _lowered_methods_impl(ctx):
    target = _target(ctx)
    exported = export_actions(ctx, BAZEL, target)
    made = template_actions(ctx, BAZEL, target, exported)
    run_actions(ctx, target, exported.plans, exported.actions + made.actions)
    return [DefaultInfo(files = depset(made.templates)), exported.export, ExecutorchLoweredInfo(templates = made.templates)]

def _executorch_program_impl(ctx):
    target = _target(ctx)
    exported = export_actions(ctx, BAZEL, target)
    made = program_actions(ctx, BAZEL, target, exported)
    export, reported, lowered = exported.export, made.reported, made.lowered
    shown = [export.directory] + export.exported_methods.values()
    if not RUNS_VALIDATIONS:
        lowered, shown = published(ctx, BAZEL, target, export, lowered, reported)
    more = actions_on_request(ctx, BAZEL, target, exported, lowered, reported)
    run_actions(ctx, target, exported.plans, exported.actions + made.actions + more.actions)
    tokenizer = [reported.tokenizer] if reported.tokenizer else []
    shipped = [lowered.pte] + lowered.named_data.values() + tokenizer + [reported.index]
    return [
        DefaultInfo(files = depset(shipped), runfiles = ctx.runfiles(shipped)),
        OutputGroupInfo(
            # Bazel 5 and later always build this group, so the checks run even if only the program is needed.
            _validation = depset([reported.report, made.compared]),
            bundled = depset([more.bundled]),
            etrecord = depset([more.etrecord]),
            export = depset(shown),
            index = depset([reported.index]),
            named_data = depset(lowered.named_data.values()),
            page = depset([more.page]),
            pte = depset([lowered.pte]),
            report = depset([reported.report]),
            tokenizer = depset(tokenizer),
        ),
        covered_sources(ctx),
        export,
        ExecutorchLoweredInfo(templates = [] if compiles_weights(target.backends) else lowered.templates),
        ExecutorchProgramInfo(
            backends = ctx.attr.backends,
            index = reported.index,
            methods = ctx.attr.methods,
            named_data = lowered.named_data,
            pte = lowered.pte,
            report = reported.report,
            tokenizer = reported.tokenizer,
        ),
        ExecutorchProgramInputsInfo(
            inputs = target.inputs,
            manifest = target.manifest,
            name = target.name,
            parameters = ctx.attr.parameters,
            variant = ctx.attr.variant,
        ),
    ]

_PROGRAM_ATTRS = {
    "adapters": attr.label_list(
        doc = "The files with the weights of the manifest's `model.adapters`, named as those of `data`. Only the action " +
              "that writes the program reads them, so new weights of an adapter lower no method. Their configurations " +
              "belong to `data`.",
        allow_files = True,
    ),
    "adapters_as": attr.label_keyed_string_dict(
        doc = "More `adapters`, each with the name that the manifest uses: " +
              "`{\"@math//:weights\": \"math/adapter_model.safetensors\"}`. For a target with several files, the name is " +
              "that of their folder.",
        allow_files = True,
    ),
    "backends": attr.string_list(
        doc = "All backends that the manifest names. If given, the build fails when the two differ. If one of them compiles " +
              "weights into what it makes, each of several `methods` is still lowered by an action of its own, for these " +
              "weights.",
    ),
    "data": attr.label_list(
        doc = "Files that exporting and lowering read, such as example inputs and calibration data; a directory that a " +
              "rule makes stands for all its files. The manifest names a " +
              "file relative to its own directory. It names a file outside of that directory relative to the root of " +
              "the repository.",
        allow_files = True,
    ),
    "data_as": attr.label_keyed_string_dict(
        doc = "More `data`, each with the name that the manifest uses: `{\"@teacher//:batches\": \"batches.safetensors\"}`. " +
              "For a target with several files, the name is that of their folder.",
        allow_files = True,
    ),
    "deps": attr.label_list(
        doc = "Libraries that `srcs` import: `executorch_library`, or `py_library` and other rules that provide `PyInfo`.",
        aspects = [python_library],
        providers = LIBRARIES,
    ),
    "export": program_attribute(
        doc = "Another `executorch_program` whose exported methods this program lowers, so that the methods are exported " +
              "once. It has the same `srcs`, `deps` and `data`. The build fails if the two would export other methods.",
        providers = [ExecutorchExportInfo],
    ),
    "lowered": program_attribute(
        doc = "Another `executorch_program` that differs from this one only in its weights. The methods are exported and " +
              "lowered once, by the other target. It has the same `srcs`, `deps`, `data` and `methods`. The build fails if " +
              "something else differs. `executorch_checkpoints` sets it.",
        providers = [ExecutorchExportInfo, ExecutorchLoweredInfo],
    ),
    "manifest": attr.label(
        doc = "The manifest: a YAML file, described by `schemas/model.schema.json`. Its `name` is the name of this target, " +
              "or `manifest_name`.",
        allow_single_file = [".yaml", ".yml"],
        mandatory = True,
    ),
    "manifest_name": attr.string(
        doc = "The manifest's `name`, if this target has another one. So several targets can build one manifest, for " +
              "example with other weights. The program is called like the target.",
    ),
    "methods": attr.string_list(
        doc = "All methods of the manifest. If given, the build fails when the two differ. If there are two or more, each " +
              "is lowered by an action of its own: the actions can run at the same time, and an edit to one method lowers " +
              "only that method. These actions read no `weights`.",
    ),
    "named_data": attr.string_list(
        doc = "All tags under the manifest's `named_data` that have no `shard_size`. Each becomes the output " +
              "`NAME.TAG.ptd`. The build fails when the two differ.",
    ),
    "parameters": attr.string_dict(
        doc = "Values of the manifest's `parameters`, as texts: `{\"layers\": \"4\"}`.",
    ),
    "plugins": attr.string_list(
        doc = "The plug-ins of the driver that the manifest needs, without those of `backends`: `etbuild targets` writes them. If " +
              "given, the actions have these plug-ins and no others, so that an edit of another one does not run them, and the " +
              "build fails when the manifest needs others. Default: `*`, all plug-ins.",
        default = [ANY_PLUGIN],
    ),
    "resource_set": attr.string(
        doc = "How much memory Bazel reserves for each action that imports torch, so that no more of them run at the same " +
              "time than fit. The default is 1.5 GB, and four times the size of inputs whose size is known: those of " +
              "`huggingface_checkpoint`. A step that took more says so, with the value to write. Bazel 4 and 5 reserve nothing.",
        default = "default",
        values = MEMORY.keys(),
    ),
    "sharded_named_data": attr.string_list(
        doc = "All tags under the manifest's `named_data` that have a `shard_size`. Each becomes the output directory " +
              "`NAME.TAG`. The build fails when the two differ.",
    ),
    "srcs": attr.label_list(
        doc = "The program's own Python sources. They are imported as if from a script in the manifest's directory: " +
              "`model.py` next to the manifest is `import model`.",
        allow_files = [".py"],
    ),
    "tokenizer": attr.label_list(
        doc = "The files of the manifest's `tokenizer`, named as those of `data`. They become the output directory " +
              "`NAME.tokenizer`. The build fails when the two differ.",
        allow_files = True,
    ),
    "variant": attr.string(
        doc = "A variant of the manifest; empty for the manifest without one. The program is called `NAME.VARIANT` after " +
              "the manifest's `name`, and this target is called `NAME` or `NAME.VARIANT`. `select()` can choose it.",
    ),
    "verify_reproducible": attr.bool(
        doc = "Build the program a second time in another environment, and fail if any byte differs.",
    ),
    "weights": attr.label_list(
        doc = "The files of the manifest's `model.weights`, named as those of `data`. Only the actions that write and compare " +
              "the program read them, so new weights do not run the export again, and lower no method that can be lowered " +
              "without them.",
        allow_files = True,
    ),
    "weights_as": attr.label_keyed_string_dict(
        doc = "More `weights`, each with the name that the manifest uses: `{\"@tuned//:weights\": \"net.safetensors\"}`. " +
              "For a target with several files, the name is that of their folder.",
        allow_files = True,
    ),
}

# Only this rule has these: they choose its configuration, and give labels to outputs with names from a BUILD file.
_CONFIGURATION_ATTRS = {
    "configuration": attr.string(
        doc = "`one`: build the program once, for all compilation modes and target platforms. Each `select()` below it then " +
              "sees the machine that builds. `target`: build it for each configuration that needs it. Default: what the " +
              "flag `--@rules_executorch//toolchain:one_configuration` says.",
        values = ["", "one", "target"],
    ),
    "toolchain": attr.string(
        doc = "The name of the toolchain that builds the program, of an `executorch.toolchain`. Default: what the flag " +
              "`--@rules_executorch//toolchain:name` says, or the first that runs on the execution platform.",
        values = [""] + [each.name for each in TOOLCHAINS],
    ),
    "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
}

_OWN_ATTRS = dict(_CONFIGURATION_ATTRS, **{
    "ptd": attr.output_list(
        doc = "The macro sets it: `NAME.TAG.ptd` for each of `named_data`.",
    ),
    "pte": attr.output(
        doc = "The macro sets it: `NAME.pte`.",
    ),
})

lowered_methods = rule(
    implementation = _lowered_methods_impl,
    cfg = configuration_of_program,
    doc = "Exports and lowers the methods of a program, for `lowered` of several programs. It has no program itself.",
    attrs = dict(_PROGRAM_ATTRS, **_CONFIGURATION_ATTRS),
    provides = [ExecutorchExportInfo, ExecutorchLoweredInfo],
    toolchains = [str(TOOLCHAIN_TYPE)],
    **EXEC_GROUPS
)

executorch_program = rule(
    implementation = _executorch_program_impl,
    cfg = configuration_of_program,
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

`:mlp` stands for all of these files, and `:mlp.pte` for the program only, wherever a rule takes a file: in
`$(location :mlp.pte)`, in `data` of a binary, in `srcs` of a `genrule` or of rules_pkg. So does `:mlp.TAG.ptd` for a tag in
`named_data`. With a `select()` for `variant` or `named_data`, names of files depend on the configuration. These files have no
labels then: use an output group, or `executorch_named_data`.

Output groups, for `--output_groups=GROUP`:

- `pte`, `named_data`, `tokenizer` and `index`: the default outputs, one kind each.
- `report`: `mlp.report.json`, facts about each method.
- `page`: `mlp.report.html`, a page about the program for people: its graph, bytes, memory and provenance.
- `bundled`: `mlp.bpte`, the program with test vectors for devices.
- `etrecord`: the directory `mlp.etrecord` with an ETRecord of each method, for ExecuTorch's Inspector.
- `export`: the exported methods, before they are lowered.
""",
    attrs = dict(_PROGRAM_ATTRS, **_OWN_ATTRS),
    provides = [ExecutorchExportInfo, ExecutorchProgramInfo, ExecutorchProgramInputsInfo],
    toolchains = [str(TOOLCHAIN_TYPE)],
    **EXEC_GROUPS
)
