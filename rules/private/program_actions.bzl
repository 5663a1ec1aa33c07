"""The actions that make a program, for Bazel and for Buck2: what each reads, what it tells the driver, and what it writes.

| action | reads | writes |
|---|---|---|
| plan | manifest, plug-ins that the target names | plans, plug-ins that the program uses |
| export | export plan, sources, data | graphs without weights |
| lower | lowering plan or that of a method, graphs, data | methods that are lowered without weights |
| lower | lowering plan, these methods, graphs, data, weights | program, named data, facts |
| compare | what the export and lowering read, the example inputs, the program and its facts | a small file: the program computes what its model computes |
| verify | what both of these read, their outputs | an empty file |
| report | plan, facts, tokenizer | tokenizer, report, index |
| page, if somebody asks for it | report, index, facts, lines of the sources | page |
| bundle, if somebody asks for it | manifest, sources, data, weights, program, index | bundled program |
| etrecord, if somebody asks for it | lowering plan, graphs, data, weights, lines of the sources, program | a directory with an ETRecord of each method |

Like `common.bzl`, this file uses only what Starlark has in both. A build system gives the functions here a `system`:

- `declare`: function(ctx, name, dir = False) that returns an output.
- `export_info`: the provider ExecutorchExportInfo.
- `runs_validations`: whether whoever uses a program waits for its checks. If not, the program is made in a directory of its own,
  from where it is copied when it has passed them.

and a `target`, what a target says:

- `name`, `manifest_name`, `variant`, `parameters`, `methods`, `backends`, `plugins`, `named_data`, `sharded_named_data`,
  `verify_reproducible`: its attributes; `name` is that of the program, with the variant.
- `manifest`: file; `manifest_path`: its path in its repository.
- `inputs`: struct with `sources` and each of `INPUTS`: struct(name, file) several times; `input_names`: dict from each of `INPUTS`
  to the names of its files. The name of a directory ends with a slash.
- `export`: ExecutorchExportInfo of the target whose exported methods it uses, or None.
- `templates`: list of the directories that another target has lowered without weights; None: this target lowers.

The arguments of an action are a list. The build system writes each item as one line:

- a string;
- `struct(format, file, parent)`: a text with the path of a file in place of its `%s`, or of its directory if `parent`. The text is
  a constant wherever it can be: all actions of a workspace then share it in memory;
- `struct(option, named)`: for each `struct(name, file)` the line `OPTION=NAME=PATH`.

Each file in them that the action does not write is an input.
"""

load(":common.bzl", "attribute_options", "read_by")
load(":facts.bzl", "ANY_PLUGIN", "TEMPLATES")

# The actions that import torch, and those that may run in a persistent worker. A verification may not: its processes
# need another environment than the first build.
_TORCH = ["export", "lower", "compare", "verify", "bundle", "etrecord"]
_WORKER = ["plan", "export", "lower", "compare", "report", "etrecord"]

# The build system decides which actions run at the same time.
_ONE_JOB = "--jobs=1"

def _action(kind, arguments, outputs, progress, name = "", more_inputs = [], messages = "", lines = None):
    """Returns an action.

    Args:
      kind: string, for the name of the action in the build system.
      arguments: list. The first is the verb of the driver.
      outputs: list of files.
      progress: string, what it does, for people who wait.
      name: string, distinguishes the actions of one kind in a target; empty if there is only one.
      more_inputs: list of files that must exist, although no argument names them.
      messages: string, distinguishes the actions that may list unused inputs; empty for others. They are files with lines,
        which only messages name, and what planning does not read.
      lines: file with the lines of the sources, which these messages name too; or None.

    Returns:
      struct.
    """
    return struct(
        arguments = arguments,
        kind = kind,
        lines = lines,
        messages = messages,
        more_inputs = more_inputs,
        name = name,
        outputs = outputs,
        progress = progress,
        torch = kind in _TORCH,
        worker = kind in _WORKER,
    )

def path_argument(format, file, parent = False):
    """Returns an argument that ends with a path.

    Args:
      format: string that ends with `%s`, for the path. Before it, `%%` stands for a `%`.
      file: file.
      parent: bool, whether it is the path of the file's directory.

    Returns:
      struct.
    """
    return struct(file = file, format = format, parent = parent)

_path = path_argument

def _named(option, named):
    return struct(named = named, option = option)

def _exported(option, methods):
    return [_path("{}={}=%s".format(option, method.replace("%", "%%")), file) for method, file in methods.items()]

def _below(system, target):
    """Returns the directory of files that are copied after the checks have passed; empty if files are not copied."""
    return "" if system.runs_validations else target.name + ".unchecked/"

def compiles_weights(backends):
    """Says whether a backend may compile the content of weights into the methods that it takes.

    Args:
      backends: list of string, all backends of a program; empty if they are not known.

    Returns:
      bool.
    """
    return bool([backend for backend in backends if backend not in TEMPLATES])

def _plan(ctx, system, target):
    """Returns the plans, and the action that checks the manifest and writes them."""
    name = target.name
    plans = struct(
        compare = system.declare(ctx, name + ".compare.plan.json"),
        export = system.declare(ctx, name + ".export.plan.json"),
        lower = system.declare(ctx, name + ".lower.plan.json"),
        methods = {
            method: system.declare(ctx, "{}.lower.{}.plan.json".format(name, method))
            for method in (target.methods if len(target.methods) > 1 else [])
        },
        plugins = {
            step: system.declare(ctx, "{}.{}.plugins".format(name, step), dir = True)
            for step in (["lower"] if target.export else ["export", "lower"])
        },
        positions = system.declare(ctx, name + ".positions.json"),
        whole = system.declare(ctx, name + ".plan.json"),
    )
    named_data = target.named_data + target.sharded_named_data
    renamed = bool(target.manifest_name)
    arguments = [
        "plan",
        _path("%s", target.manifest),
        "--manifest-name=" + target.manifest_path,
        "--expect-name=" + (".".join([target.manifest_name] + ([target.variant] if target.variant else [])) if renamed else name),
    ] + (["--program-name=" + name] if renamed else []) + _variant_arguments(target)
    if target.export:
        arguments.append(_path("--same-export=%s", target.export.plan))
    for option, names in [("--expect-methods=", target.methods), ("--expect-backends=", target.backends)]:
        arguments.extend([option + ",".join(names)] if names else [])
    arguments.extend([] if ANY_PLUGIN in target.plugins else ["--expect-plugins=" + ",".join(target.plugins)])
    arguments.extend(["--expect-named-data=" + ",".join(named_data), "--expect-sharded=" + ",".join(target.sharded_named_data)])
    arguments.append("--expect-inputs")
    arguments.extend(["--input={}={}".format(attribute, each) for attribute, names in target.input_names.items() for each in names])
    arguments.extend([
        _path("--plan=%s", plans.whole),
        _path("--export-plan=%s", plans.export),
        _path("--lower-plan=%s", plans.lower),
        _path("--compare-plan=%s", plans.compare),
    ])
    arguments.extend(_exported("--method-plan", plans.methods))
    arguments.extend(_exported("--plugins-of", plans.plugins))
    arguments.append(_path("--positions=%s", plans.positions))
    outputs = [plans.whole, plans.export, plans.lower, plans.compare, plans.positions]
    outputs += plans.methods.values() + plans.plugins.values()
    return plans, _action("plan", arguments, outputs, "Planning", messages = "plan")

def _variant_arguments(target):
    parameters = ["{}={}".format(name, value) for name, value in sorted(target.parameters.items())]
    variant = attribute_options("variant", "--variant", [target.variant]) if target.variant else []
    return variant + (attribute_options("parameters", "--set", parameters) if parameters else [])

def _export(ctx, system, target, plans):
    """Returns ExecutorchExportInfo, and the action that exports each method. One file has all of them, if one action lowers all."""
    start = _below(system, target) + target.name
    export = system.export_info(
        data = target.inputs.data,
        directory = system.declare(ctx, start + ".export", dir = True),
        examples = system.declare(ctx, start + ".export.examples.safetensors"),
        exported_methods = {method: system.declare(ctx, "{}.export.{}.pt2".format(start, method)) for method in plans.methods},
        input_digests = system.declare(ctx, start + ".export_inputs.json"),
        lines = system.declare(ctx, start + ".export.lines.json"),
        plan = plans.export,
        sources = target.inputs.sources,
    )
    arguments = [
        "export",
        _path("--plugins=%s", plans.plugins["export"]),
        _path("%s", plans.export),
        _named("--source", target.inputs.sources),
        _named("--data", read_by("export", target.inputs)),
        _path("--inputs=%s", export.input_digests),
        _path("--lines=%s", export.lines),
        _path("--examples=%s", export.examples),
    ] + _exported("--method", export.exported_methods) + ["-o", _path("%s", export.directory)]
    outputs = [export.directory, export.input_digests, export.lines, export.examples] + export.exported_methods.values()
    return export, _action("export", arguments, outputs, "Exporting", messages = "export")

def _lower_arguments(plans, plan, export, methods, named):
    arguments = ["lower", _path("--plugins=%s", plans.plugins["lower"]), _path("%s", plan), "--export", _path("%s", export.directory)]
    return arguments + _exported("--exported", methods) + [
        _named("--data", named),
        _ONE_JOB,
    ]

def template_steps(plans, export, inputs, with_weights):
    """Returns the actions that lower methods by themselves: one action for each of several methods, otherwise one.

    They read no weights. Another action binds the results to weights, and writes the program. So all checkpoints, and
    machines with one cache, share these actions. If a backend compiles weights, each of several methods is still
    lowered by an action of its own.

    Args:
      plans: struct with `lower` and `methods`.
      export: struct with `exported_methods`.
      inputs: struct with each of `INPUTS`.
      with_weights: bool, whether a backend compiles weights.

    Returns:
      list of struct: `name`, the end of the name of the directory that the action writes; `plan`, a file; `methods`, the exported
      methods outside of the export's directory that it reads, by name; `weights`, whether it reads weights; `files`, list of
      struct(name, file).
    """
    files = read_by("template", inputs)
    if not plans.methods:
        return [struct(name = "methods", files = files, methods = export.exported_methods, plan = plans.lower, weights = False)]
    return [
        struct(
            name = method,
            files = files + (inputs.weights if with_weights else []),
            methods = {method: export.exported_methods[method]},
            plan = plan,
            weights = with_weights,
        )
        for method, plan in plans.methods.items()
    ]

def _template(ctx, system, target, plans, export, step):
    """Returns a directory, and the action that lowers methods into it by themselves."""
    lowered = system.declare(ctx, "{}.lowered.{}".format(target.name, step.name), dir = True)
    flags = ["--templates"] + (["--with-weights"] if step.weights else [])
    return lowered, _action(
        "lower",
        _lower_arguments(plans, step.plan, export, step.methods, step.files) + flags + ["-o", _path("%s", lowered)],
        [lowered],
        "Lowering {} of".format(step.name),
        name = step.name,
        messages = "lowered." + step.name,
        lines = export.lines,
    )

def _templates(ctx, system, target, plans, export, shareable = False):
    """Returns the directories with methods that are lowered by themselves, and their actions. `shareable`: those without weights."""
    steps = template_steps(plans, export, target.inputs, compiles_weights(target.backends))
    made = [_template(ctx, system, target, plans, export, step) for step in steps if not (shareable and step.weights)]
    return [lowered for lowered, _ in made], [action for _, action in made]

def artifacts(ctx, system, target, below = ""):
    """Declares a program and its named data.

    Args:
      ctx: the context of the rule.
      system: struct.
      target: struct.
      below: string, a directory with a slash; or empty.

    Returns:
      (file, dict of tag to file).
    """
    start = below + target.name
    named_data = {tag: system.declare(ctx, "{}.{}.ptd".format(start, tag)) for tag in target.named_data}
    named_data.update({tag: system.declare(ctx, "{}.{}".format(start, tag), dir = True) for tag in target.sharded_named_data})
    return system.declare(ctx, start + ".pte"), named_data

def _lower(ctx, system, target, plans, export, templates):
    """Returns the files of a program, and the action that binds lowered methods to their weights and writes it.

    The bytes are the same as when all methods are lowered together with their weights.
    """
    below = _below(system, target)
    pte, named_data = artifacts(ctx, system, target, below)
    lowered = struct(
        computed = system.declare(ctx, "{}{}.computed.safetensors".format(below, target.name)),
        facts = system.declare(ctx, "{}{}.lowering.json".format(below, target.name)),
        named_data = named_data,
        pte = pte,
        templates = templates,
    )
    arguments = _lower_arguments(plans, plans.lower, export, export.exported_methods, read_by("program", target.inputs)) + [
        _path("--lowered=%s", template)
        for template in templates
    ] + [_path("--computed=%s", lowered.computed), "-o", _path("%s", lowered.facts, parent = True)]
    outputs = [pte] + named_data.values() + [lowered.facts, lowered.computed]
    return lowered, _action("lower", arguments, outputs, "Writing the program of", messages = "lower", lines = export.lines)

def _compare(ctx, system, target, plans, export, lowered):
    """Returns `NAME.comparison.json`, and the action that runs the program and fails if it computes something else than its model.

    The file names the methods that could not be compared.
    """
    result = system.declare(ctx, target.name + ".comparison.json")
    arguments = ["compare", _path("--plugins=%s", plans.plugins["lower"]), _path("%s", plans.compare), "--export", _path("%s", export.directory)]
    arguments += _exported("--exported", export.exported_methods) + [
        _path("--examples=%s", export.examples),
        _named("--source", target.inputs.sources),
        _named("--data", read_by("program", target.inputs)),
        _path("--computed=%s", lowered.computed),
        _path("--lowering=%s", lowered.facts),
        _path("--program=%s", lowered.pte),
    ] + [_path("--named-data=%s", file) for file in lowered.named_data.values()] + [_ONE_JOB, "-o", _path("%s", result)]
    return result, _action("compare", arguments, [result], "Comparing", messages = "comparison", lines = export.lines)

def _verify(ctx, system, target, plans, export, lowered):
    """Returns an empty file, and the action that builds the program a second time and fails if any file differs.

    It compares the program and its named data, and every file between the steps.
    """
    stamp = system.declare(ctx, target.name + ".verified")
    arguments = [
        "reproduce",
        _path("%s", plans.export),
        _path("%s", plans.lower),
        _named("--source", target.inputs.sources),
        _named("--data", read_by("program", target.inputs)),
    ] + [_path("--against=%s", artifact) for artifact in [lowered.pte] + lowered.named_data.values() + [lowered.facts]] + [
        "--export",
        _path("%s", export.directory),
        _path("--inputs=%s", export.input_digests),
        _path("--lines=%s", export.lines),
        _path("--examples=%s", export.examples),
    ] + _exported("--exported", export.exported_methods) + [_path("--lowered=%s", directory) for directory in lowered.templates]
    progress = "Building again and comparing"
    return stamp, _action("verify", arguments + [_path("--stamp=%s", stamp)], [stamp], progress, messages = "verify")

def _report(ctx, system, target, plans, export, lowered, required):
    """Returns the report, the index and the tokenizer (or None), and the action that runs the checks of the manifest and writes them.

    `required` are files that must exist before.
    """
    files = read_by("report", target.inputs)
    reported = struct(
        index = system.declare(ctx, target.name + ".index.json"),
        report = system.declare(ctx, target.name + ".report.json"),
        tokenizer = system.declare(ctx, target.name + ".tokenizer", dir = True) if files else None,
    )
    arguments = [
        "report",
        _path("--plugins=%s", plans.plugins["lower"]),
        _path("%s", plans.whole),
        _path("--inputs=%s", export.input_digests),
        _path("--lowering=%s", lowered.facts),
        _named("--data", files),
        "-o",
        _path("%s", reported.index, parent = True),
    ]
    outputs = [reported.index, reported.report] + ([reported.tokenizer] if files else [])
    return reported, _action(
        "report",
        arguments,
        outputs,
        "Checking",
        more_inputs = required,
        messages = "report",
        lines = export.lines,
    )

def _page(ctx, system, target, export, lowered, reported):
    page = system.declare(ctx, target.name + ".report.html")
    return page, _action("page", [
        "page",
        _path("--report=%s", reported.report),
        _path("--index=%s", reported.index),
        _path("--lowering=%s", lowered.facts),
        _path("--lines=%s", export.lines),
        "-o",
        _path("%s", page),
    ], [page], "Making the page of")

def _bundle(ctx, system, target, lowered, reported):
    bundled = system.declare(ctx, target.name + ".bpte")
    arguments = [
        "bundle",
        _path("%s", target.manifest),
        "--manifest-name=" + target.manifest_path,
        "--program-name=" + target.name,
    ] + _variant_arguments(target) + [
        _named("--source", target.inputs.sources),
        _named("--data", read_by("", target.inputs)),
        _path("--program=%s", lowered.pte),
    ] + [_path("--named-data=%s", file) for file in lowered.named_data.values()] + [
        "--declared-only",
        "--no-cache",
        "-o",
        _path("%s", bundled),
    ]
    passed = [reported.index]  # so the program has passed its checks
    return bundled, _action("bundle", arguments, [bundled], "Bundling", more_inputs = passed)

def _etrecord(ctx, system, target, plans, export, lowered):
    """Returns a directory, and the action that lowers all methods once more. It fails if this makes another program."""
    directory = system.declare(ctx, target.name + ".etrecord", dir = True)
    arguments = ["etrecord", _path("%s", plans.lower), "--export", _path("%s", export.directory)]
    arguments += _exported("--exported", export.exported_methods) + [
        _named("--data", read_by("program", target.inputs)),
        _path("--lines=%s", export.lines),
        _path("--program=%s", lowered.pte),
        "-o",
        _path("%s", directory),
    ]
    return directory, _action("etrecord", arguments, [directory], "Lowering once more, for ETRecords of", messages = "etrecord")

def export_actions(ctx, system, target):
    """Returns the actions that plan a program and export its methods.

    Args:
      ctx: the context of the rule.
      system: struct.
      target: struct.

    Returns:
      struct of `plans`, `export` (ExecutorchExportInfo) and `actions`.
    """
    plans, plan = _plan(ctx, system, target)
    if target.export:
        return struct(actions = [plan], export = target.export, plans = plans)
    export, action = _export(ctx, system, target, plans)
    return struct(actions = [plan, action], export = export, plans = plans)

def template_actions(ctx, system, target, exported):
    """Returns the actions that lower exported methods without weights.

    Args:
      ctx: the context of the rule.
      system: struct.
      target: struct.
      exported: the result of `export_actions`.

    Returns:
      struct of `templates`, list of directories for `templates` of other targets that differ only in their weights; empty if a
      backend compiles weights; and `actions`.
    """
    templates, actions = _templates(ctx, system, target, exported.plans, exported.export, shareable = True)
    return struct(actions = actions, templates = templates)

def program_actions(ctx, system, target, exported):
    """Returns the actions that lower exported methods, write the program and check it.

    Args:
      ctx: the context of the rule.
      system: struct.
      target: struct.
      exported: the result of `export_actions`.

    Returns:
      struct with these fields:

      - `lowered`: struct of `pte`, `named_data` (dict of tag to `NAME.TAG.ptd`, or for a tag with shards to the directory
        `NAME.TAG`), `facts` (JSON for the report), `computed` (weights that were computed from others) and `templates`.
      - `compared`: file that exists only if the program computes what its model computes.
      - `reported`: struct of `index`, `report` and `tokenizer` (None for a program without one).
      - `actions`.
    """
    plans, export = exported.plans, exported.export
    templates, actions = (target.templates, []) if target.templates else _templates(ctx, system, target, plans, export)
    lowered, lower = _lower(ctx, system, target, plans, export, templates)
    compared, compare = _compare(ctx, system, target, plans, export, lowered)
    actions = actions + [lower, compare]
    required = [] if system.runs_validations else [compared]
    if target.verify_reproducible:
        verified, verify = _verify(ctx, system, target, plans, export, lowered)
        required = [verified] + required
        actions.append(verify)
    reported, report = _report(ctx, system, target, plans, export, lowered, required)
    return struct(actions = actions + [report], compared = compared, lowered = lowered, reported = reported)

def actions_on_request(ctx, system, target, exported, lowered, reported):
    """Returns the actions of files that a build makes only if somebody asks for them.

    Args:
      ctx: the context of the rule.
      system: struct.
      target: struct.
      exported: the result of `export_actions`.
      lowered: struct, `lowered` of `program_actions`, or a copy that has passed the checks.
      reported: struct, `reported` of `program_actions`.

    Returns:
      struct of `page`, `bundled` and `etrecord` (files) and `actions`.
    """
    page, make_page = _page(ctx, system, target, exported.export, lowered, reported)
    bundled, bundle = _bundle(ctx, system, target, lowered, reported)
    etrecord, record = _etrecord(ctx, system, target, exported.plans, exported.export, lowered)
    return struct(actions = [make_page, bundle, record], bundled = bundled, etrecord = etrecord, page = page)
