"""The rule executorch_program for Buck2: one manifest becomes one program, by the actions of `program_actions.bzl`."""

load("//rules/private:common.bzl", "BOTH_EXPORTS", "NOTHING_LOWERED", "attributes_error", "export_error", "inputs_error", "name_with_variant", "plugins_of")
load("//rules/private:facts.bzl", "ANY_PLUGIN", "INPUTS")
load(
    "//rules/private:program_actions.bzl",
    "actions_on_request",
    "compiles_weights",
    "export_actions",
    "program_actions",
    "template_actions",
)
load(":driver.bzl", "DRIVER_ATTRS", "declare", "run_action")
load(":files.bzl", "FILE", "check", "files_of", "named_as", "named_beside", "place")
load(
    ":providers.bzl",
    "EXECUTORCH_SOURCES",
    "ExecutorchExportInfo",
    "ExecutorchLibraryInfo",
    "ExecutorchLoweredInfo",
    "ExecutorchProgramInfo",
)

_BUCK2 = struct(declare = declare, export_info = ExecutorchExportInfo, runs_validations = True)

def _inputs(ctx: AnalysisContext, manifest):
    """Returns the files of a target by the names that the manifest and the sources use."""
    own = named_beside(ctx, ctx.attrs.srcs, manifest)
    sources = ctx.actions.tset(
        EXECUTORCH_SOURCES,
        children = [dep.get(ExecutorchLibraryInfo).sources for dep in ctx.attrs.deps],
        value = own,
    )
    renamed = {attribute: getattr(ctx.attrs, attribute + "_as") for attribute, row in INPUTS.items() if row.renamed}
    inputs = struct(
        sources = [source for group in sources.traverse(ordering = "postorder") for source in group],
        **{
            attribute: named_beside(ctx, getattr(ctx.attrs, attribute), manifest) +
                       named_as(ctx, renamed.get(attribute, {}), attribute + "_as")
            for attribute in INPUTS
        }
    )
    check(ctx, inputs_error(own, inputs, [attribute for attribute, names in renamed.items() if names], place))
    return inputs

def _target(ctx: AnalysisContext):
    """Returns what a target says, for `program_actions.bzl`, and fails if that is wrong."""
    attributes = ctx.attrs
    [manifest] = files_of(ctx, attributes.manifest)
    inputs = _inputs(ctx, manifest)
    check(ctx, BOTH_EXPORTS if attributes.export and attributes.lowered else None)
    templates = attributes.lowered.get(ExecutorchLoweredInfo).templates if attributes.lowered else None
    shared = attributes.lowered or attributes.export
    target = struct(
        backends = sorted(attributes.backends),
        export = shared.get(ExecutorchExportInfo) if shared else None,
        input_names = {attribute: [entry.name for entry in getattr(inputs, attribute)] for attribute in INPUTS},
        inputs = inputs,
        manifest = manifest.file,
        manifest_name = attributes.manifest_name,
        manifest_path = manifest.path,
        methods = sorted(attributes.methods),
        name = name_with_variant(ctx.label.name, attributes.variant),
        named_data = sorted(attributes.named_data),
        parameters = attributes.parameters,
        plugins = sorted(attributes.plugins),
        sharded_named_data = sorted(attributes.sharded_named_data),
        templates = templates,
        variant = attributes.variant,
        verify_reproducible = attributes.verify_reproducible,
    )
    check(ctx, attributes_error(target))
    if shared:
        check(ctx, export_error(target, inputs.sources, target.export.sources, place))
    check(ctx, NOTHING_LOWERED if templates == [] else None)
    return target

def _sub_targets(lowered, reported, export, more) -> dict:
    """Returns the sub-targets: `:NAME[pte]`, `:NAME[ptd][TAG]` and so on."""
    found = {
        "bundled": [DefaultInfo(default_output = more.bundled)],
        "etrecord": [DefaultInfo(default_output = more.etrecord)],
        "export": [DefaultInfo(default_outputs = [export.directory] + export.exported_methods.values())],
        "index": [DefaultInfo(default_output = reported.index)],
        "page": [DefaultInfo(default_output = more.page)],
        "ptd": [DefaultInfo(
            default_outputs = lowered.named_data.values(),
            sub_targets = {tag: [DefaultInfo(default_output = file)] for tag, file in lowered.named_data.items()},
        )],
        "pte": [DefaultInfo(default_output = lowered.pte)],
        "report": [DefaultInfo(default_output = reported.report)],
    }
    if reported.tokenizer:
        found["tokenizer"] = [DefaultInfo(default_output = reported.tokenizer)]
    return found

def _lowered_methods_impl(ctx: AnalysisContext) -> list[Provider]:
    target = _target(ctx)
    exported = export_actions(ctx, _BUCK2, target)
    made = template_actions(ctx, _BUCK2, target, exported)
    for action in exported.actions + made.actions:
        run_action(ctx, action, plugins_of(target))
    return [
        DefaultInfo(default_outputs = made.templates),
        exported.export,
        ExecutorchLoweredInfo(templates = made.templates),
    ]

def _executorch_program_impl(ctx: AnalysisContext) -> list[Provider]:
    target = _target(ctx)
    exported = export_actions(ctx, _BUCK2, target)
    made = program_actions(ctx, _BUCK2, target, exported)
    lowered, reported = made.lowered, made.reported
    more = actions_on_request(ctx, _BUCK2, target, exported, lowered, reported)
    validation = declare(ctx, target.name + ".validation.json")
    for action in exported.actions + made.actions + more.actions:
        is_report = action.kind == "report"
        run_action(ctx, action, plugins_of(target), {"--validation=%s": validation} if is_report else {})
    tokenizer = [reported.tokenizer] if reported.tokenizer else []
    return [
        DefaultInfo(
            default_output = lowered.pte,
            other_outputs = lowered.named_data.values() + tokenizer + [reported.index],
            sub_targets = _sub_targets(lowered, reported, exported.export, more),
        ),
        ExecutorchProgramInfo(
            backends = ctx.attrs.backends,
            index = reported.index,
            methods = ctx.attrs.methods,
            named_data = lowered.named_data,
            pte = lowered.pte,
            report = reported.report,
            tokenizer = reported.tokenizer,
        ),
        # Buck2 waits for it whenever a build needs this target, whatever the build takes from it.
        ValidationInfo(validations = [
            ValidationSpec(name = "executorch_checks", validation_result = validation),
            ValidationSpec(name = "executorch_comparison", validation_result = made.compared),
        ]),
        exported.export,
        ExecutorchLoweredInfo(templates = [] if compiles_weights(target.backends) else lowered.templates),
    ]

_FILES = attrs.list(FILE, default = [])

_ATTRS = dict(
    {
        "adapters": _FILES,
        "adapters_as": attrs.dict(key = attrs.string(), value = attrs.source(), default = {}),
        "backends": attrs.list(attrs.string(), default = []),
        "data": _FILES,
        "data_as": attrs.dict(key = attrs.string(), value = attrs.source(), default = {}),
        "deps": attrs.list(attrs.dep(providers = [ExecutorchLibraryInfo]), default = []),
        "export": attrs.option(attrs.dep(providers = [ExecutorchExportInfo]), default = None),
        "lowered": attrs.option(attrs.dep(providers = [ExecutorchExportInfo, ExecutorchLoweredInfo]), default = None),
        "manifest": FILE,
        "manifest_name": attrs.string(default = ""),
        "methods": attrs.list(attrs.string(), default = []),
        "named_data": attrs.list(attrs.string(), default = []),
        "parameters": attrs.dict(key = attrs.string(), value = attrs.string(), default = {}),
        "plugins": attrs.list(attrs.string(), default = [ANY_PLUGIN]),
        "sharded_named_data": attrs.list(attrs.string(), default = []),
        "srcs": _FILES,
        "tokenizer": _FILES,
        "variant": attrs.string(default = ""),
        "verify_reproducible": attrs.bool(default = False),
        "weights": _FILES,
        "weights_as": attrs.dict(key = attrs.string(), value = attrs.source(), default = {}),
    },
    **DRIVER_ATTRS
)

executorch_program = rule(
    impl = _executorch_program_impl,
    doc = """Builds an ExecuTorch program from a manifest.

Sub-targets: `:NAME[pte]`, `:NAME[ptd]`, `:NAME[ptd][TAG]`, `:NAME[index]`, `:NAME[report]`, `:NAME[page]`,
`:NAME[tokenizer]`, `:NAME[bundled]`, `:NAME[etrecord]`, `:NAME[export]`. The attributes are those of the rule for Bazel, except that `data_as`, `weights_as` and
`adapters_as` map names to files.
""",
    attrs = _ATTRS,
)

lowered_methods = rule(
    impl = _lowered_methods_impl,
    doc = "Exports and lowers the methods of a program, for `lowered` of several programs. It has no program itself.",
    attrs = _ATTRS,
)
