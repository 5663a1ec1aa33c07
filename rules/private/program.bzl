"""executorch_program: one manifest becomes one program.

Four actions, each of which Bazel runs again only when something that it reads has changed:

    ExecutorchPlan     the manifest           -> the plan, and its parts for the next two        no torch
    ExecutorchExport   its part, sources      -> every method without its weights                torch
    ExecutorchLower    its part, the export,  -> the program and its named data                  torch, ExecuTorch
                       weights
    ExecutorchReport   the plan, facts        -> the report and the index; the manifest's checks  no torch

A comment in the manifest ends after the first, since the plan stays as it is; one in a source after the second, since the
graphs do; a changed check runs the first and the last.

Where the target lists several methods, ExecutorchLower is several actions: one lowers each method by itself, and one
merges them. An edit to one method lowers one.
"""

load("//rules:providers.bzl", "ExecutorchLibraryInfo", "ExecutorchProgramInfo")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":driver.bzl", "driver_arguments", "run_driver")
load(":names.bzl", "check_unique", "name_beside", "repository_path")

# Would be taken for something else in an argument of the driver or in the name of a file.
_NOT_IN_NAMES = [",", "/", "=", " ", "\t", "\n"]

def _check_distinct(values, attribute):
    seen = {}
    for value in values:
        if value in seen:
            fail("'{}' is listed twice".format(value), attr = attribute)
        if not value or [char for char in _NOT_IN_NAMES if char in value]:
            fail("'{}' is not a name".format(value), attr = attribute)
        seen[value] = True

def _plan(ctx):
    """Declares ExecutorchPlan.

    Args:
      ctx: the rule's context.

    Returns:
      struct(whole, export, lower, methods): the plan, and its parts for the steps of these names; for lowering single
      methods a dict, empty where they are lowered together.
    """
    manifest = ctx.file.manifest
    name = ctx.label.name
    methods = ctx.attr.methods if len(ctx.attr.methods) > 1 else []
    plans = struct(
        methods = {
            method: ctx.actions.declare_file("{}.lower.{}.plan.json".format(name, method))
            for method in methods
        },
        export = ctx.actions.declare_file(name + ".export.plan.json"),
        lower = ctx.actions.declare_file(name + ".lower.plan.json"),
        whole = ctx.actions.declare_file(name + ".plan.json"),
    )

    # Line numbers for the messages of later actions, which look for them beside their plan. No input of theirs.
    positions = ctx.actions.declare_file(name + ".positions.json")

    arguments = driver_arguments(ctx, "plan")
    arguments.add(manifest)
    arguments.add("--manifest-name=" + repository_path(manifest))
    arguments.add("--expect-name=" + name)
    if ctx.attr.methods:
        arguments.add("--expect-methods=" + ",".join(ctx.attr.methods))
    if ctx.attr.backends:
        arguments.add("--expect-backends=" + ",".join(ctx.attr.backends))
    arguments.add("--expect-named-data=" + ",".join(ctx.attr.named_data + ctx.attr.sharded_named_data))
    arguments.add("--expect-sharded=" + ",".join(ctx.attr.sharded_named_data))
    arguments.add(plans.whole, format = "--plan=%s")
    arguments.add(plans.export, format = "--export-plan=%s")
    arguments.add(plans.lower, format = "--lower-plan=%s")
    for method, plan in plans.methods.items():
        arguments.add(plan, format = "--method-plan={}=%s".format(method))
    arguments.add(positions, format = "--positions=%s")
    run_driver(
        ctx,
        arguments,
        inputs = [manifest],
        outputs = [plans.whole, plans.export, plans.lower, positions] + plans.methods.values(),
        mnemonic = "ExecutorchPlan",
        progress = "Planning",
    )
    return plans

def _named(ctx, attribute):
    """The files of an attribute, each with the name that it has in the program."""
    files = getattr(ctx.files, attribute)
    named = [struct(name = name_beside(file, ctx.file.manifest), file = file) for file in files]
    check_unique(named, attribute)
    return named

def _argument(option, entry):
    return "--{}={}={}".format(option, entry.name, entry.file.path)

def _source_argument(source):
    return _argument("source", source)

def _data_argument(data):
    return _argument("data", data)

def _inputs(ctx):
    """What the program is made from.

    Args:
      ctx: the rule's context.

    Returns:
      struct(sources, data, weights): depset and lists of struct(name, file).
    """
    libraries = [dep[ExecutorchLibraryInfo] for dep in ctx.attr.deps]
    data = _named(ctx, "data")
    weights = _named(ctx, "weights")
    check_unique(data + weights, "weights")
    return struct(
        data = data,
        sources = depset(_named(ctx, "srcs"), transitive = [library.sources for library in libraries]),
        source_files = depset(ctx.files.srcs, transitive = [library.files for library in libraries]),
        weights = weights,
    )

def _export(ctx, plans, inputs):
    """Declares ExecutorchExport.

    Args:
      ctx: the rule's context.
      plans: of `_plan`.
      inputs: of `_inputs`.

    Returns:
      struct(directory, methods, inputs): the export, its methods where each is lowered by itself, and the digests of
      what it was made from. No digest of a source is in the export itself: an edit that leaves the graphs as they are
      ends here.
    """
    directory = ctx.actions.declare_directory(ctx.label.name + ".export")
    methods = {
        method: ctx.actions.declare_file("{}.export.{}.pt2".format(ctx.label.name, method))
        for method in plans.methods
    }
    read = ctx.actions.declare_file(ctx.label.name + ".export_inputs.json")
    arguments = driver_arguments(ctx, "export")
    arguments.add(plans.export)
    arguments.add_all(inputs.sources, map_each = _source_argument)
    arguments.add_all(inputs.data, map_each = _data_argument)
    arguments.add(read, format = "--inputs=%s")
    for method, file in methods.items():
        arguments.add(file, format = "--method={}=%s".format(method))
    arguments.add_all("-o", [directory], expand_directories = False)
    run_driver(
        ctx,
        arguments,
        inputs = depset([plans.export] + ctx.files.data, transitive = [inputs.source_files]),
        outputs = [directory, read] + methods.values(),
        mnemonic = "ExecutorchExport",
        progress = "Exporting",
        torch = True,
        worker = True,
    )
    return struct(directory = directory, inputs = read, methods = methods)

def _lower_arguments(ctx, plan, export, methods, inputs):
    arguments = driver_arguments(ctx, "lower")
    arguments.add(plan)
    arguments.add_all([export.directory], before_each = "--export", expand_directories = False)
    for method in methods:
        arguments.add(export.methods[method], format = "--exported={}=%s".format(method))
    arguments.add_all(inputs.data + inputs.weights, map_each = _data_argument)
    arguments.add("--jobs=1")  # Bazel decides what runs at the same time
    return arguments

def _lower_method(ctx, method, plan, export, inputs):
    """Declares ExecutorchLower of one method by itself.

    Args:
      ctx: the rule's context.
      method: its name.
      plan: its plan.
      export: of `_export`.
      inputs: of `_inputs`.

    Returns:
      File: the directory of the lowered method.
    """
    lowered = ctx.actions.declare_directory("{}.lowered.{}".format(ctx.label.name, method))
    arguments = _lower_arguments(ctx, plan, export, [method], inputs)
    arguments.add("--method=" + method)
    arguments.add_all("-o", [lowered], expand_directories = False)
    run_driver(
        ctx,
        arguments,
        inputs = [plan, export.directory, export.methods[method]] + ctx.files.data + ctx.files.weights,
        outputs = [lowered],
        mnemonic = "ExecutorchLower",
        progress = "Lowering {} of".format(method),
        torch = True,
        worker = True,
    )
    return lowered

def _lower(ctx, plans, export, inputs, outputs):
    """Declares ExecutorchLower.

    Args:
      ctx: the rule's context.
      plans: of `_plan`.
      export: of `_export`.
      inputs: of `_inputs`.
      outputs: the program and its named data.

    Returns:
      File: the facts of what was lowered.
    """
    methods = {
        method: _lower_method(ctx, method, plan, export, inputs)
        for method, plan in plans.methods.items()
    }
    facts = ctx.actions.declare_file(ctx.label.name + ".lowering.json")
    arguments = _lower_arguments(ctx, plans.lower, export, export.methods, inputs)
    for method, lowered in methods.items():
        arguments.add_all([lowered], format_each = "--lowered={}=%s".format(method), expand_directories = False)
    arguments.add("-o", facts.dirname)
    run_driver(
        ctx,
        arguments,
        inputs = [plans.lower, export.directory] + export.methods.values() + methods.values() + ctx.files.data +
                 ctx.files.weights,
        outputs = outputs + [facts],
        mnemonic = "ExecutorchLower",
        progress = "Merging" if methods else "Lowering",
        torch = True,
        worker = True,
    )
    return facts

def _verify(ctx, plans, inputs, outputs):
    """Declares ExecutorchVerify, which builds a second time and compares.

    No worker: both of its steps run in processes of their own, in surroundings that a running process cannot take on.

    Args:
      ctx: the rule's context.
      plans: of `_plan`.
      inputs: of `_inputs`.
      outputs: what the first build lowered.

    Returns:
      File: an empty file, which is there if nothing differs.
    """
    stamp = ctx.actions.declare_file(ctx.label.name + ".verified")
    arguments = driver_arguments(ctx, "verify")
    arguments.add_all([plans.export, plans.lower])
    arguments.add_all(inputs.sources, map_each = _source_argument)
    arguments.add_all(inputs.data + inputs.weights, map_each = _data_argument)
    arguments.add_all(outputs, format_each = "--against=%s", expand_directories = False)
    arguments.add(stamp, format = "--stamp=%s")
    run_driver(
        ctx,
        arguments,
        inputs = depset(
            [plans.export, plans.lower] + ctx.files.data + ctx.files.weights + outputs,
            transitive = [inputs.source_files],
        ),
        outputs = [stamp],
        mnemonic = "ExecutorchVerify",
        progress = "Building again and comparing",
        torch = True,
    )
    return stamp

def _report(ctx, plan, export_inputs, facts, verified):
    """Declares ExecutorchReport.

    Args:
      ctx: the rule's context.
      plan: the whole plan.
      export_inputs: the digests of what was exported.
      facts: those of the lowering.
      verified: what has to be there besides.

    Returns:
      struct(index, report): its outputs.
    """
    index = ctx.actions.declare_file(ctx.label.name + ".index.json")
    report = ctx.actions.declare_file(ctx.label.name + ".report.json")
    arguments = driver_arguments(ctx, "report")
    arguments.add(plan)
    arguments.add(export_inputs, format = "--inputs=%s")
    arguments.add(facts, format = "--lowering=%s")
    arguments.add("-o", index.dirname)
    run_driver(
        ctx,
        arguments,
        inputs = [plan, export_inputs, facts] + verified,
        outputs = [index, report],
        mnemonic = "ExecutorchReport",
        progress = "Checking",
    )
    return struct(index = index, report = report)

def _declare_named_data(ctx):
    """The output of each tag: a file, or a directory of shards."""
    name = ctx.label.name
    files = {tag: ctx.actions.declare_file("{}.{}.ptd".format(name, tag)) for tag in ctx.attr.named_data}
    files.update({tag: ctx.actions.declare_directory("{}.{}".format(name, tag)) for tag in ctx.attr.sharded_named_data})
    return files

def _executorch_program_impl(ctx):
    for attribute in ["methods", "backends", "named_data", "sharded_named_data"]:
        _check_distinct(getattr(ctx.attr, attribute), attribute)
    _check_distinct(ctx.attr.named_data + ctx.attr.sharded_named_data, "sharded_named_data")
    inputs = _inputs(ctx)
    pte = ctx.actions.declare_file(ctx.label.name + ".pte")
    named_data = _declare_named_data(ctx)
    lowered = [pte] + named_data.values()

    plans = _plan(ctx)
    export = _export(ctx, plans, inputs)
    facts = _lower(ctx, plans, export, inputs, lowered)
    verified = [_verify(ctx, plans, inputs, lowered + [facts])] if ctx.attr.verify_reproducible else []
    made = _report(ctx, plans.whole, export.inputs, facts, verified)

    shipped = lowered + [made.index]
    return [
        DefaultInfo(files = depset(shipped), runfiles = ctx.runfiles(shipped)),
        OutputGroupInfo(
            # Later Bazels build this one whatever is asked for: who builds the program alone still has its checks run.
            _validation = depset([made.report]),
            export = depset([export.directory] + export.methods.values()),
            index = depset([made.index]),
            named_data = depset(named_data.values()),
            pte = depset([pte]),
            report = depset([made.report]),
        ),
        ExecutorchProgramInfo(
            backends = ctx.attr.backends,
            index = made.index,
            methods = ctx.attr.methods,
            named_data = named_data,
            pte = pte,
            report = made.report,
        ),
    ]

executorch_program = rule(
    implementation = _executorch_program_impl,
    doc = """Builds a program, its named data and its index from a manifest.

    executorch_program(
        name = "mlp",
        srcs = ["model.py"],
        manifest = "model.yaml",
        weights = ["mlp.safetensors"],
    )

Output groups: `pte`, `named_data`, `index`, `report`, and `export`, the methods before they are lowered.
""",
    attrs = {
        "backends": attr.string_list(
            doc = "The backends of the manifest. Checked against it where given.",
        ),
        "data": attr.label_list(
            doc = "Example inputs and other files, by the names that the manifest gives them: relative to the manifest, " +
                  "or to the repository for a file that does not lie below it.",
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
            doc = "The methods of the manifest. Checked against it where given. Several are then lowered by an action " +
                  "each, so that an edit to one lowers one, and they are lowered at the same time.",
        ),
        "named_data": attr.string_list(
            doc = "The tags of the manifest's `named_data`, always checked: each becomes an output, `NAME.TAG.ptd`.",
        ),
        "sharded_named_data": attr.string_list(
            doc = "Those of its tags that have a `shard_size`: each becomes a directory, `NAME.TAG`.",
        ),
        "srcs": attr.label_list(
            doc = "The program's own Python sources, imported as from a script beside the manifest.",
            allow_files = [".py"],
        ),
        "verify_reproducible": attr.bool(
            doc = "Builds twice, in other surroundings the second time, and fails where the two differ.",
        ),
        "weights": attr.label_list(
            doc = "The files of the manifest's `model.weights`, named as in `data`. Only lowering reads them: to change " +
                  "them exports nothing again.",
            allow_files = True,
        ),
    },
    provides = [ExecutorchProgramInfo],
    toolchains = [str(TOOLCHAIN_TYPE)],
)
