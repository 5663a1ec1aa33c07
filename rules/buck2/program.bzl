"""The rule executorch_program for Buck2: one manifest becomes one program.

It declares the same actions as the rule for Bazel, with the same arguments: see `rules/actions.bzl`.
"""

load(
    "//rules/private:common.bzl",
    "bundle_arguments",
    "compare_arguments",
    "compiles_weights",
    "etrecord_arguments",
    "export_arguments",
    "export_error",
    "inputs_error",
    "lists_error",
    "lower_arguments",
    "name_with_variant",
    "parameters_error",
    "plan_arguments",
    "report_arguments",
    "reproduce_arguments",
    "template_arguments",
    "template_steps",
)
load("//rules/private:facts.bzl", "INPUTS")
load(":driver.bzl", "DRIVER_ATTRS", "declare", "run_driver")
load(":files.bzl", "FILE", "check", "files_of", "named_as", "named_beside", "place")
load(
    ":providers.bzl",
    "EXECUTORCH_SOURCES",
    "ExecutorchExportInfo",
    "ExecutorchLibraryInfo",
    "ExecutorchLoweredInfo",
    "ExecutorchProgramInfo",
)

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

def _plan(ctx: AnalysisContext, manifest, inputs, shared):
    """Declares the action that checks the manifest and writes its plans."""
    attributes = ctx.attrs
    check(ctx, lists_error(
        attributes.methods,
        attributes.backends,
        attributes.named_data,
        attributes.sharded_named_data,
    ))
    error = parameters_error(attributes.parameters)
    check(ctx, ("parameters", error) if error else None)
    name = name_with_variant(ctx.label.name, attributes.variant)
    plans = struct(
        compare = declare(ctx, name + ".compare.plan.json"),
        compiles_weights = compiles_weights(attributes.backends),
        export = declare(ctx, name + ".export.plan.json"),
        lower = declare(ctx, name + ".lower.plan.json"),
        method_plans = {
            method: declare(ctx, "{}.lower.{}.plan.json".format(name, method))
            for method in (attributes.methods if len(attributes.methods) > 1 else [])
        },
        name = name,
        named_data = attributes.named_data,
        sharded_named_data = attributes.sharded_named_data,
        whole = declare(ctx, name + ".plan.json"),
    )
    positions = declare(ctx, name + ".positions.json")
    other_name = attributes.manifest_name
    run_driver(
        ctx,
        plan_arguments(
            plans,
            manifest.file,
            manifest.path,
            positions,
            methods = attributes.methods,
            backends = attributes.backends,
            variant = attributes.variant,
            parameters = attributes.parameters,
            export_plan = shared.plan if shared else None,
            inputs = {
                attribute: [entry.name for entry in getattr(inputs, attribute)]
                for attribute in INPUTS
            },
            manifest_name = name_with_variant(other_name, attributes.variant) if other_name else "",
        ),
        outputs = [plans.whole, plans.export, plans.lower, plans.compare, positions] + plans.method_plans.values(),
        category = "executorch_plan",
    )
    return plans

def _export(ctx: AnalysisContext, plans, inputs):
    """Declares the action that exports each method with `torch.export`."""
    export = ExecutorchExportInfo(
        data = inputs.data,
        directory = declare(ctx, plans.name + ".export", dir = True),
        examples = declare(ctx, plans.name + ".export.examples.safetensors"),
        exported_methods = {
            method: declare(ctx, "{}.export.{}.pt2".format(plans.name, method))
            for method in plans.method_plans
        },
        input_digests = declare(ctx, plans.name + ".export_inputs.json"),
        lines = declare(ctx, plans.name + ".export.lines.json"),
        plan = plans.export,
        sources = inputs.sources,
    )
    run_driver(
        ctx,
        export_arguments(plans, inputs, export),
        outputs = [export.directory, export.input_digests, export.lines, export.examples] + export.exported_methods.values(),
        category = "executorch_export",
        torch = True,
    )
    return export

def _lower_templates(ctx: AnalysisContext, plans, inputs, export) -> list:
    """Declares the actions that lower the exported methods, without weights or for a backend that compiles them."""
    templates = []
    for step in template_steps(plans, export, inputs):
        templates.append(declare(ctx, "{}.lowered.{}".format(plans.name, step.name), dir = True))
        run_driver(
            ctx,
            template_arguments(step, export, templates[-1]),
            outputs = templates[-1:],
            category = "executorch_lower",
            identifier = step.name,
            torch = True,
        )
    return templates

def _lower(ctx: AnalysisContext, plans, inputs, export, templates: list):
    """Declares the action that writes the program of lowered methods."""
    named_data = {tag: declare(ctx, "{}.{}.ptd".format(plans.name, tag)) for tag in plans.named_data}
    named_data.update({tag: declare(ctx, "{}.{}".format(plans.name, tag), dir = True) for tag in plans.sharded_named_data})
    lowered = struct(
        computed = declare(ctx, plans.name + ".computed.safetensors"),
        facts = declare(ctx, plans.name + ".lowering.json"),
        named_data = named_data,
        pte = declare(ctx, plans.name + ".pte"),
        templates = templates,
    )
    run_driver(
        ctx,
        lower_arguments(plans, export, inputs, templates, lowered),
        outputs = [lowered.pte] + named_data.values() + [lowered.facts, lowered.computed],
        category = "executorch_lower",
        torch = True,
    )
    return lowered

def _compare(ctx: AnalysisContext, plans, inputs, export, lowered) -> Artifact:
    """Declares the action that runs the program and fails if it computes something else than its exported methods."""
    result = declare(ctx, plans.name + ".comparison.json")
    run_driver(
        ctx,
        compare_arguments(plans, export, inputs, lowered, result),
        outputs = [result],
        category = "executorch_compare",
        torch = True,
    )
    return result

def _verify(ctx: AnalysisContext, plans, inputs, export, lowered) -> Artifact:
    """Declares the action that builds the program a second time and fails if any file differs."""
    stamp = declare(ctx, plans.name + ".verified")
    artifacts = [lowered.pte] + lowered.named_data.values() + [lowered.facts]
    run_driver(
        ctx,
        reproduce_arguments(plans, inputs, export, lowered, artifacts, stamp),
        outputs = [stamp],
        category = "executorch_verify",
    )
    return stamp

def _report(ctx: AnalysisContext, plans, inputs, export, lowered, required: list):
    """Declares the action that runs the checks of the manifest and writes the report and the index."""
    reported = struct(
        index = declare(ctx, plans.name + ".index.json"),
        report = declare(ctx, plans.name + ".report.json"),
        tokenizer = declare(ctx, plans.name + ".tokenizer", dir = True) if inputs.tokenizer else None,
        validation = declare(ctx, plans.name + ".validation.json"),
    )
    arguments = report_arguments(plans, export, lowered, inputs.tokenizer, reported.index)
    run_driver(
        ctx,
        arguments + [struct(file = reported.validation, parent = False, prefix = "--validation=")],
        outputs = [
            output
            for output in [reported.index, reported.report, reported.tokenizer, reported.validation]
            if output
        ],
        category = "executorch_report",
        hidden = required,
    )
    return reported

def _bundle(ctx: AnalysisContext, plans, manifest, inputs, lowered, reported) -> Artifact:
    """Declares the action that bundles the program with test vectors. Buck2 runs it if somebody asks for the bundle."""
    bundled = declare(ctx, plans.name + ".bpte")
    run_driver(
        ctx,
        bundle_arguments(
            plans,
            manifest.file,
            manifest.path,
            inputs,
            lowered,
            bundled,
            ctx.attrs.variant,
            ctx.attrs.parameters,
        ),
        outputs = [bundled],
        category = "executorch_bundle",
        hidden = [reported.index],  # the program has passed its checks
    )
    return bundled

def _etrecord(ctx: AnalysisContext, plans, inputs, export, lowered) -> Artifact:
    """Declares the action that writes ETRecords. Buck2 runs it if somebody asks for them."""
    directory = declare(ctx, plans.name + ".etrecord", dir = True)
    run_driver(
        ctx,
        etrecord_arguments(plans, export, inputs, lowered.pte, directory),
        outputs = [directory],
        category = "executorch_etrecord",
        torch = True,
    )
    return directory

def _sub_targets(lowered, reported, export, bundled, etrecord) -> dict:
    """Returns the sub-targets: `:NAME[pte]`, `:NAME[ptd][TAG]` and so on."""
    found = {
        "bundled": [DefaultInfo(default_output = bundled)],
        "etrecord": [DefaultInfo(default_output = etrecord)],
        "export": [DefaultInfo(default_outputs = [export.directory] + export.exported_methods.values())],
        "index": [DefaultInfo(default_output = reported.index)],
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

def _described(ctx: AnalysisContext):
    """Declares the actions that plan and export the program of a target. Returns its inputs, plans and export."""
    [manifest] = files_of(ctx, ctx.attrs.manifest)
    inputs = _inputs(ctx, manifest)
    check(ctx, ("export", "write `export` or `lowered`") if ctx.attrs.export and ctx.attrs.lowered else None)
    other = ctx.attrs.lowered or ctx.attrs.export
    shared = other.get(ExecutorchExportInfo) if other else None
    plans = _plan(ctx, manifest, inputs, shared)
    if shared:
        check(ctx, export_error(plans, inputs, shared, inputs.sources, shared.sources, place))
    return inputs, plans, shared or _export(ctx, plans, inputs)

def _lowered_methods_impl(ctx: AnalysisContext) -> list[Provider]:
    inputs, plans, export = _described(ctx)
    templates = _lower_templates(ctx, plans, inputs, export)
    shareable = [] if plans.compiles_weights else templates
    return [DefaultInfo(default_outputs = templates), export, ExecutorchLoweredInfo(templates = shareable)]

def _executorch_program_impl(ctx: AnalysisContext) -> list[Provider]:
    [manifest] = files_of(ctx, ctx.attrs.manifest)
    inputs, plans, export = _described(ctx)
    templates = ctx.attrs.lowered.get(ExecutorchLoweredInfo).templates if ctx.attrs.lowered else []
    refused = ctx.attrs.lowered and not templates
    check(ctx, ("lowered", "a backend of this target compiles weights: leave out `lowered`") if refused else None)
    templates = templates or _lower_templates(ctx, plans, inputs, export)
    lowered = _lower(ctx, plans, inputs, export, templates)
    compared = _compare(ctx, plans, inputs, export, lowered)
    verified = [_verify(ctx, plans, inputs, export, lowered)] if ctx.attrs.verify_reproducible else []
    reported = _report(ctx, plans, inputs, export, lowered, verified)
    bundled = _bundle(ctx, plans, manifest, inputs, lowered, reported)
    etrecord = _etrecord(ctx, plans, inputs, export, lowered)
    tokenizer = [reported.tokenizer] if reported.tokenizer else []
    return [
        DefaultInfo(
            default_output = lowered.pte,
            other_outputs = lowered.named_data.values() + tokenizer + [reported.index],
            sub_targets = _sub_targets(lowered, reported, export, bundled, etrecord),
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
            ValidationSpec(name = "executorch_checks", validation_result = reported.validation),
            ValidationSpec(name = "executorch_comparison", validation_result = compared),
        ]),
        export,
        ExecutorchLoweredInfo(templates = [] if plans.compiles_weights else templates),
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

Sub-targets: `:NAME[pte]`, `:NAME[ptd]`, `:NAME[ptd][TAG]`, `:NAME[index]`, `:NAME[report]`, `:NAME[tokenizer]`,
`:NAME[bundled]`, `:NAME[etrecord]`,
`:NAME[export]`. The attributes are those of the rule for Bazel, except that `data_as`, `weights_as` and
`adapters_as` map names to files.
""",
    attrs = _ATTRS,
)

lowered_methods = rule(
    impl = _lowered_methods_impl,
    doc = "Exports and lowers the methods of a program, for `lowered` of several programs. It has no program itself.",
    attrs = _ATTRS,
)
