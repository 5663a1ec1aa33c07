"""The actions that build a program, as functions for rules of your own.

`executorch_program` calls these functions in this order. Bazel runs an action again only when one of its inputs changes.

| function | action | reads | writes |
|---|---|---|---|
| `plan_program` | ExecutorchPlan | manifest | plans |
| `export_program` | ExecutorchExport | export plan, sources, data | graphs without weights |
| `lower_program` | ExecutorchLower | lowering plan or that of a method, graphs, data | methods that are lowered without weights |
| | ExecutorchLower | lowering plan, these methods, graphs, data, weights | program, named data, facts |
| `compare_program` | ExecutorchCompare | what the export and lowering read, the example inputs, the program and its facts | a small file: the program computes what its model computes |
| `verify_program` | ExecutorchVerify | what both of these read, their outputs | an empty file |
| `report_program` | ExecutorchReport | plan, facts, tokenizer | tokenizer, report, index |
| `page_program` | ExecutorchPage, if somebody asks for the page | report, index, facts, lines of the sources | page |
| `bundle_program` | ExecutorchBundle, if somebody asks for it | manifest, sources, data, weights, program, index | bundled program |
| `etrecord_program` | ExecutorchEtrecord, if somebody asks for it | lowering plan, graphs, data, weights, lines of the sources, program | a directory with an ETRecord of each method |
| `publish_program` | ExecutorchPublish, only for Bazel 4 | program, named data, report | copies |
| `publish_export` | ExecutorchPublish, only for Bazel 4, if somebody asks for the graphs | graphs, report | copies |

An edit runs only the actions that it reaches:

- A new comment in the manifest runs only ExecutorchPlan, because the plans stay the same. Later actions read where its
  lines are too, for messages, but Bazel knows that no output depends on that (`unused_inputs_list`).
- A changed check in the manifest runs ExecutorchPlan and ExecutorchReport; one of `checks.compare`, ExecutorchCompare too.
- A new comment in a source runs ExecutorchExport, ExecutorchCompare, which runs the sources too, and ExecutorchReport.
- New weights run the second ExecutorchLower, which binds the methods to their weights, ExecutorchCompare and ExecutorchReport.

This rule writes the plan of a manifest and builds nothing else:

```starlark
load("@rules_executorch//rules:actions.bzl", "EXEC_GROUPS", "TOOLCHAIN_TYPE", "plan_program")
load("@rules_executorch//rules:defs.bzl", "PROGRAM_ATTRS")

def _program_plan_impl(ctx):
    plans = plan_program(ctx, ctx.label.name, ctx.file.manifest, named_data = ctx.attr.named_data)
    return [DefaultInfo(files = depset([plans.whole]))]

program_plan = rule(
    implementation = _program_plan_impl,
    attrs = {name: PROGRAM_ATTRS[name] for name in ["manifest", "named_data"]},
    toolchains = [str(TOOLCHAIN_TYPE)],
    **EXEC_GROUPS
)
```
"""

load("//rules:providers.bzl", "ExecutorchExportInfo")
load(
    "//rules/private:common.bzl",
    "bundle_arguments",
    "compare_arguments",
    "compiles_weights",
    "etrecord_arguments",
    "export_arguments",
    "export_error",
    "import_paths_error",
    "inputs_error",
    "lists_error",
    "lower_arguments",
    "messages_arguments",
    "name_with_variant",
    "parameters_error",
    "plan_arguments",
    "read_by",
    "report_arguments",
    "reproduce_arguments",
    "template_arguments",
    "template_steps",
)
load("//rules/private:compat.bzl", "label_text")
load("//rules/private:driver.bzl", "driver_arguments", "run_driver", "toolchain_of", _EXEC_GROUPS = "EXEC_GROUPS")
load("//rules/private:facts.bzl", "INPUTS")
load("//rules/private:library.bzl", "check_packages", "data_of", "installed_of")
load("//rules/private:names.bzl", "named_as", "named_beside", "place", "repository_path")
load("//toolchain:toolchain.bzl", _TOOLCHAIN_TYPE = "TOOLCHAIN_TYPE")

# A rule that calls these functions has `toolchains = [str(TOOLCHAIN_TYPE)]`.
TOOLCHAIN_TYPE = _TOOLCHAIN_TYPE

# It may also have `**EXEC_GROUPS`. Then `exec_properties` of its targets can name one step: `{"lower.Pool": "large"}`.
EXEC_GROUPS = _EXEC_GROUPS

def program_name(ctx, variant = ""):
    """Returns the name of the program that a target builds.

    Args:
      ctx: the context of the rule.
      variant: string, a variant of the manifest; empty for the manifest without one.

    Returns:
      string: the name of the target. For a variant, `NAME.VARIANT`; the target can be called `NAME` or `NAME.VARIANT`.
    """
    return name_with_variant(ctx.label.name, variant)

def _directory(file):
    return file.dirname

def _source_argument(source):
    return "--source={}={}".format(source.name, source.file.path)

def _data_argument(data):
    return "--data={}={}".format(data.name, data.file.path)

_NAMED = {"--data": _data_argument, "--source": _source_argument}

def _arguments(ctx, items):
    """Returns the Args of arguments that common.bzl made."""
    arguments = driver_arguments(ctx, items[0])
    for item in items[1:]:
        if type(item) == "string":
            arguments.add(item)
        elif hasattr(item, "named"):
            arguments.add_all(item.named, map_each = _NAMED[item.option])
        elif item.parent:
            arguments.add_all([item.file], map_each = _directory, expand_directories = False)
        else:
            arguments.add_all([item.file], format_each = item.prefix.replace("%", "%%") + "%s", expand_directories = False)
    return arguments

def _check(error):
    """Fails if there is an error: an attribute and the problem with it."""
    if error:
        fail(error[1], attr = error[0])

def plan_program(
        ctx,
        name,
        manifest,
        methods = [],
        backends = [],
        named_data = [],
        sharded_named_data = [],
        variant = "",
        parameters = {},
        export = None,
        inputs = None,
        manifest_name = ""):
    """Declares ExecutorchPlan, which checks the manifest and writes its plans as JSON.

    Args:
      ctx: the context of the rule.
      name: string, the name of the program: the `name` in the manifest, or the result of `program_name`. All outputs start
        with it.
      manifest: File, the manifest.
      methods: list of string, all methods of the manifest, or empty. The action fails if a list that is not empty differs
        from the manifest's. If there are two or more methods, each is lowered by an action of its own.
      backends: list of string, all backends that the manifest names, or empty. Checked like `methods`.
      named_data: list of string, all tags of the manifest that have no `shard_size`. Checked even if it is empty.
      sharded_named_data: list of string, all tags of the manifest that have a `shard_size`. Checked even if it is empty.
      variant: string, a variant of the manifest; empty for the manifest without one.
      parameters: dict of string to string, the values of parameters of the manifest.
      export: ExecutorchExportInfo of a target whose exported methods this program uses, or None. The action fails if the
        program would export other methods.
      inputs: the result of `program_inputs`, or None. The action fails if the manifest names other files.
      manifest_name: string, the `name` in the manifest, with `.VARIANT` for a variant; empty if it is `name`.

    Returns:
      struct with these fields:

      - `name`, `named_data`, `sharded_named_data`: the arguments.
      - `positions`: File, the line numbers of the manifest, for messages of later actions.
      - `whole`: File, the plan of the whole program.
      - `export`: File, the part of the plan that ExecutorchExport reads.
      - `lower`: File, the part of the plan that ExecutorchLower reads.
      - `compare`: File, the part of the plan that ExecutorchCompare reads.
      - `compiles_weights`: bool, whether `backends` lists one that may compile weights into methods.
      - `method_plans`: dict of method name to File, the plans for lowering one method each. It is empty if one action lowers
        all methods.
    """
    _check(lists_error(methods, backends, named_data, sharded_named_data))
    _check(("parameters", parameters_error(parameters)) if parameters_error(parameters) else None)
    if inputs:
        check_packages(ctx.label, inputs.installed, toolchain_of(ctx, "export"))  # the first step that imports the sources

    plans = struct(
        name = name,
        compare = ctx.actions.declare_file(name + ".compare.plan.json"),
        compiles_weights = compiles_weights(backends),
        export = ctx.actions.declare_file(name + ".export.plan.json"),
        lower = ctx.actions.declare_file(name + ".lower.plan.json"),
        method_plans = {
            method: ctx.actions.declare_file("{}.lower.{}.plan.json".format(name, method))
            for method in (methods if len(methods) > 1 else [])
        },
        named_data = named_data,
        positions = ctx.actions.declare_file(name + ".positions.json"),
        sharded_named_data = sharded_named_data,
        whole = ctx.actions.declare_file(name + ".plan.json"),
    )

    arguments = _arguments(ctx, plan_arguments(
        plans,
        manifest,
        repository_path(manifest),
        plans.positions,
        methods = methods,
        backends = backends,
        variant = variant,
        parameters = parameters,
        export_plan = export.plan if export else None,
        inputs = {
            attribute: [entry.name + ("/" if entry.file.is_directory else "") for entry in getattr(inputs, attribute)]
            for attribute in INPUTS
        } if inputs else None,
        manifest_name = manifest_name,
    ))
    run_driver(
        ctx,
        arguments,
        inputs = [manifest] + ([export.plan] if export else []),
        outputs = [plans.whole, plans.export, plans.lower, plans.compare, plans.positions] + plans.method_plans.values(),
        mnemonic = "ExecutorchPlan",
        verb = "plan",
        progress = "Planning",
        worker = True,
    )
    return plans

def program_inputs(
        manifest,
        srcs = [],
        libraries = [],
        data = [],
        weights = [],
        tokenizer = [],
        data_as = {},
        weights_as = {},
        adapters = [],
        adapters_as = {}):
    """Gives each input file the name that the manifest and the sources use for it.

    Args:
      manifest: File, the manifest. Names are relative to its directory.
      srcs: list of File, the program's own Python sources.
      libraries: list of ExecutorchLibraryInfo, the libraries that the sources import. Their data is data of the program,
        unless another argument has the file.
      data: list of File, the files that exporting and lowering read. A directory stands for all its files.
      weights: list of File, the files that only lowering reads.
      tokenizer: list of File, the files that travel with the program. No step but the last one reads them.
      data_as: dict of Target to string, more files that exporting and lowering read, with their names.
      weights_as: dict of Target to string, more files that only lowering reads, with their names.
      adapters: list of File, the weights of adapters. Of the actions that lower, only the one that writes the program
        reads them.
      adapters_as: dict of Target to string, more weights of adapters, with their names.

    Returns:
      struct with these fields. A named file is a struct(name, file).

      - `sources`: depset of named files, the sources, including those of the libraries.
      - `source_files`: depset of File, the same files.
      - `installed`: depset, the Python packages that the libraries need.
      - `data`, `weights`, `tokenizer`, `adapters`: lists of named files.
    """
    listed = {"adapters": adapters, "data": data, "tokenizer": tokenizer, "weights": weights}
    renamed = {"adapters": adapters_as, "data": data_as, "weights": weights_as}
    files = {
        attribute: named_beside(listed[attribute], manifest) + named_as(renamed.get(attribute, {}), attribute + "_as")
        for attribute in INPUTS
    }
    known = {entry.file: True for named in files.values() for entry in named}
    of_libraries = [file for file in data_of(libraries).to_list() if file not in known]
    files["data"] = files["data"] + named_beside(of_libraries, manifest)
    named = struct(
        installed = installed_of(libraries),
        source_files = depset(srcs, transitive = [library.files for library in libraries]),
        sources = depset(named_beside(srcs, manifest), transitive = [library.sources for library in libraries]),
        **files
    )
    given = [attribute for attribute, names in renamed.items() if names]
    _check(inputs_error(named_beside(srcs, manifest), named, given, place))
    _check(import_paths_error(named.sources.to_list(), place))
    return named

def _files(named):
    return [entry.file for entry in named]

def _below(plans, apart):
    """Returns the directory of files that are copied when the checks have passed; empty for files that are not."""
    return plans.name + ".unchecked/" if apart else ""

def _messages(ctx, plans, action, lines = None):
    """Returns what lets the messages of an action name lines.

    The files with the lines are inputs, and the action lists them for Bazel as unused when it succeeds: a line that moves
    does not run it again. Remote caches know no unused inputs, so the flag `//toolchain:lines` can leave them out.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      action: string, which differs for each action of a program.
      lines: File with the lines of the sources, or None.

    Returns:
      struct of `arguments`, `inputs`, `outputs` and `unused` (a File or None).
    """
    if not ctx.toolchains[TOOLCHAIN_TYPE].lines:
        return struct(arguments = [], inputs = [], outputs = [], unused = None)
    unused = ctx.actions.declare_file("{}.{}.unused_inputs".format(plans.name, action))
    return struct(
        arguments = messages_arguments(plans.positions, lines, unused),
        inputs = [plans.positions] + ([lines] if lines else []),
        outputs = [unused],
        unused = unused,
    )

def _exported(ctx, start, methods):
    """Declares the directory of an export, and a file for each method."""
    directory = ctx.actions.declare_directory(start + ".export")
    return directory, {method: ctx.actions.declare_file("{}.export.{}.pt2".format(start, method)) for method in methods}

def export_program(ctx, plans, inputs, apart = False):
    """Declares ExecutorchExport, which exports each method with `torch.export`.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      apart: bool, whether the files are for `publish_export`: they are in a directory of their own.

    Returns:
      ExecutorchExportInfo. Its `exported_methods` are empty if one action lowers all methods.
    """
    start = _below(plans, apart) + plans.name
    directory, exported_methods = _exported(ctx, start, plans.method_plans)
    input_digests = ctx.actions.declare_file(start + ".export_inputs.json")

    lines = ctx.actions.declare_file(start + ".export.lines.json")
    examples = ctx.actions.declare_file(start + ".export.examples.safetensors")
    export = ExecutorchExportInfo(
        data = inputs.data,
        directory = directory,
        examples = examples,
        exported_methods = exported_methods,
        input_digests = input_digests,
        lines = lines,
        plan = plans.export,
        sources = inputs.sources,
    )
    messages = _messages(ctx, plans, "export")
    run_driver(
        ctx,
        _arguments(ctx, export_arguments(plans, inputs, export) + messages.arguments),
        inputs = depset([plans.export] + _files(read_by("export", inputs)) + messages.inputs, transitive = [inputs.source_files]),
        outputs = [directory, input_digests, lines, examples] + exported_methods.values() + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchExport",
        verb = "export",
        progress = "Exporting",
        torch = True,
        worker = True,
    )
    return export

def check_export(export, plans, inputs):
    """Fails if a program cannot use the exported methods of another target.

    Args:
      export: ExecutorchExportInfo of the other target.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
    """
    _check(export_error(plans, inputs, export, inputs.sources.to_list(), export.sources.to_list(), place))

def _lower_template(ctx, step, plans, export):
    """Declares ExecutorchLower of one of `template_steps`, and returns the directory that it writes."""
    lowered = ctx.actions.declare_directory("{}.lowered.{}".format(plans.name, step.name))
    messages = _messages(ctx, plans, "lowered." + step.name, export.lines)
    run_driver(
        ctx,
        _arguments(ctx, template_arguments(step, export, lowered) + messages.arguments),
        inputs = [step.plan, export.directory] + [export.exported_methods[method] for method in step.methods] +
                 _files(step.files) + messages.inputs,
        outputs = [lowered] + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchLower",
        verb = "lower",
        progress = "Lowering {} of".format(step.name),
        torch = True,
        worker = True,
    )
    return lowered

def _artifacts(ctx, plans, below = ""):
    """Declares a program and its named data; `below` is a directory, or empty."""
    pte = ctx.actions.declare_file("{}{}.pte".format(below, plans.name))
    named_data = {
        tag: ctx.actions.declare_file("{}{}.{}.ptd".format(below, plans.name, tag))
        for tag in plans.named_data
    }
    named_data.update({
        tag: ctx.actions.declare_directory("{}{}.{}".format(below, plans.name, tag))
        for tag in plans.sharded_named_data
    })
    return pte, named_data

def lower_templates(ctx, plans, inputs, export):
    """Declares ExecutorchLower of each exported method, without weights.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      export: the result of `export_program`.

    Returns:
      list of File, directories for `lower_program`, also of other targets that differ only in their weights; empty if a
      backend compiles weights.
    """
    steps = template_steps(plans, export, inputs)
    return [_lower_template(ctx, step, plans, export) for step in steps if not step.weights]

def lower_program(ctx, plans, inputs, export, apart = False, templates = None):
    """Declares ExecutorchLower twice: one lowers the exported methods without weights, one binds them and writes the program.

    If a target lists several methods, each is lowered by an action of its own. Then an edit to one method lowers only that
    method. Methods that cannot be lowered without weights are lowered when the program is written. The bytes are the same as
    when all methods are lowered together with their weights.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      export: the result of `export_program`.
      apart: bool, whether the files are for `publish_program`: they are in a directory of their own.
      templates: list of File, what another target has lowered without weights; None: this target lowers.

    Returns:
      struct with these fields:

      - `pte`: File, the program.
      - `named_data`: dict of tag to File: `NAME.TAG.ptd`, or for a tag with shards the directory `NAME.TAG`.
      - `facts`: File, facts about the lowering as JSON, for the report.
      - `computed`: File, the weights that were computed from others, for the comparison.
      - `templates`: list of File, the directories with the methods that are lowered by themselves.
    """
    below = _below(plans, apart)
    pte, named_data = _artifacts(ctx, plans, below)
    facts = ctx.actions.declare_file("{}{}.lowering.json".format(below, plans.name))
    computed = ctx.actions.declare_file("{}{}.computed.safetensors".format(below, plans.name))
    lowered = struct(computed = computed, facts = facts, named_data = named_data, pte = pte)

    if templates == None:
        templates = [_lower_template(ctx, step, plans, export) for step in template_steps(plans, export, inputs)]
    messages = _messages(ctx, plans, "lower", export.lines)
    run_driver(
        ctx,
        _arguments(ctx, lower_arguments(plans, export, inputs, templates, lowered) + messages.arguments),
        inputs = [plans.lower, export.directory] + export.exported_methods.values() + templates +
                 _files(read_by("program", inputs)) + messages.inputs,
        outputs = [pte] + named_data.values() + [facts, computed] + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchLower",
        verb = "lower",
        progress = "Writing the program of",
        torch = True,
        worker = True,
    )
    return struct(computed = computed, facts = facts, named_data = named_data, pte = pte, templates = templates)

# Copies files and directories: SOURCE TARGET SOURCE TARGET ... A directory in a sandbox holds links.
_COPY = """\
set -eu
while [ $# -gt 0 ]; do
  if [ -d "$1" ]; then mkdir -p "$2"; cp -RL "$1/." "$2"; else cp -L "$1" "$2"; fi
  shift 2
done
"""

def publish_program(ctx, plans, lowered, reported):
    """Declares ExecutorchPublish, which copies a program that has passed its checks.

    Only Bazel 4 needs it: it runs no validation actions, so that a rule could use a program that fails a check.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      lowered: the result of `lower_program`, made with `apart`.
      reported: the result of `report_program`.

    Returns:
      what `lower_program` returns, with the copies of the program and its named data.
    """
    pte, named_data = _artifacts(ctx, plans)
    copies = [(lowered.pte, pte)] + [(lowered.named_data[tag], copy) for tag, copy in named_data.items()]
    _publish(ctx, copies, reported, "program")
    return struct(
        computed = lowered.computed,
        facts = lowered.facts,
        named_data = named_data,
        pte = pte,
        templates = lowered.templates,
    )

def publish_export(ctx, plans, export, reported):
    """Declares ExecutorchPublish, which copies the exported methods of a program that has passed its checks.

    Only Bazel 4 needs it, as it needs `publish_program`. The other actions read the methods themselves.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      export: the result of `export_program`, made with `apart`.
      reported: the result of `report_program`.

    Returns:
      list of File, the copies.
    """
    directory, exported_methods = _exported(ctx, plans.name, export.exported_methods)
    copies = [(export.directory, directory)]
    copies += [(export.exported_methods[method], copy) for method, copy in exported_methods.items()]
    _publish(ctx, copies, reported, "export")
    return [copy for _, copy in copies]

def _publish(ctx, copies, reported, what):
    arguments = ctx.actions.args()
    for source, copy in copies:
        arguments.add_all([source, copy], expand_directories = False)
    ctx.actions.run_shell(
        command = _COPY,
        arguments = [arguments],
        inputs = [source for source, _ in copies] + [reported.report],
        outputs = [copy for _, copy in copies],
        mnemonic = "ExecutorchPublish",
        progress_message = "Copying the checked {} of {}".format(what, label_text(ctx.label)),
    )

def compare_program(ctx, plans, inputs, export, lowered):
    """Declares ExecutorchCompare, which runs the program, and fails if it computes something else than its model.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      export: the result of `export_program`.
      lowered: the result of `lower_program`.

    Returns:
      File, `NAME.comparison.json`. It exists only if the program is right. It names the methods that could not be compared.
    """
    result = ctx.actions.declare_file(plans.name + ".comparison.json")
    messages = _messages(ctx, plans, "comparison", export.lines)
    run_driver(
        ctx,
        _arguments(ctx, compare_arguments(plans, export, inputs, lowered, result) + messages.arguments),
        inputs = depset(
            [plans.compare, export.directory, export.examples, lowered.facts, lowered.computed, lowered.pte] +
            lowered.named_data.values() + export.exported_methods.values() +
            _files(read_by("program", inputs)) + messages.inputs,
            transitive = [inputs.source_files],
        ),
        outputs = [result] + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchCompare",
        verb = "compare",
        progress = "Comparing",
        torch = True,
        worker = True,
    )
    return result

def verify_program(ctx, plans, inputs, export, lowered):
    """Declares ExecutorchVerify, which builds the program a second time and fails if any file differs.

    It compares the program and its named data, and every file between the steps. It never runs in a worker: the second
    build needs processes with another environment than the first.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      export: the result of `export_program`.
      lowered: the result of `lower_program`.

    Returns:
      File: an empty file. It exists only if nothing differs.
    """
    stamp = ctx.actions.declare_file(plans.name + ".verified")
    artifacts = [lowered.pte] + lowered.named_data.values() + [lowered.facts]
    steps = [export.directory, export.input_digests, export.lines, export.examples]
    messages = _messages(ctx, plans, "verify")
    run_driver(
        ctx,
        _arguments(ctx, reproduce_arguments(plans, inputs, export, lowered, artifacts, stamp) + messages.arguments),
        inputs = depset(
            [plans.export, plans.lower] + _files(read_by("program", inputs)) + artifacts + steps +
            export.exported_methods.values() + lowered.templates + messages.inputs,
            transitive = [inputs.source_files],
        ),
        outputs = [stamp] + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchVerify",
        progress = "Building again and comparing",
        torch = True,
    )
    return stamp

def report_program(ctx, plans, export, lowered, inputs = None, required = []):
    """Declares ExecutorchReport, which runs the checks of the manifest and writes the report and the index.

    It also copies the tokenizer.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      export: the result of `export_program`.
      lowered: the result of `lower_program`.
      inputs: the result of `program_inputs`, or None for a program without a tokenizer.
      required: list of File that must exist before the report is written, such as the result of `verify_program`.

    Returns:
      struct with these fields:

      - `index`: File, `NAME.index.json`.
      - `report`: File, `NAME.report.json`.
      - `tokenizer`: File, the directory `NAME.tokenizer`; None for a program without a tokenizer.
    """
    files = read_by("report", inputs) if inputs else []
    tokenizer = ctx.actions.declare_directory(plans.name + ".tokenizer") if files else None
    index = ctx.actions.declare_file(plans.name + ".index.json")
    report = ctx.actions.declare_file(plans.name + ".report.json")
    messages = _messages(ctx, plans, "report", export.lines)
    run_driver(
        ctx,
        _arguments(ctx, report_arguments(plans, export, lowered, files, index) + messages.arguments),
        inputs = [plans.whole, export.input_digests, lowered.facts] + _files(files) + required + messages.inputs,
        outputs = [index, report] + ([tokenizer] if tokenizer else []) + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchReport",
        verb = "report",
        progress = "Checking",
        worker = True,
    )
    return struct(index = index, report = report, tokenizer = tokenizer)

def page_program(ctx, plans, export, lowered, reported):
    """Declares ExecutorchPage, which writes an HTML page about the program. Bazel runs it if somebody asks for the page.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      export: the result of `export_program`.
      lowered: the result of `lower_program`.
      reported: the result of `report_program`.

    Returns:
      File, `NAME.report.html`.
    """
    page = ctx.actions.declare_file(plans.name + ".report.html")
    arguments = driver_arguments(ctx, "page")
    arguments.add(reported.report, format = "--report=%s")
    arguments.add(reported.index, format = "--index=%s")
    arguments.add(lowered.facts, format = "--lowering=%s")
    arguments.add(export.lines, format = "--lines=%s")
    arguments.add("-o", page)
    run_driver(
        ctx,
        arguments,
        inputs = [reported.report, reported.index, lowered.facts, export.lines],
        outputs = [page],
        mnemonic = "ExecutorchPage",
        progress = "Making the page of",
    )
    return page

def bundle_program(ctx, plans, manifest, inputs, lowered, reported, variant = "", parameters = {}):
    """Declares ExecutorchBundle, which bundles a program with test vectors. Bazel runs it if somebody asks for the bundle.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      manifest: File, the manifest.
      inputs: the result of `program_inputs`.
      lowered: the result of `lower_program`, or of `publish_program`.
      reported: the result of `report_program`.
      variant: string, a variant of the manifest; empty for the manifest without one.
      parameters: dict of string to string, the values of parameters of the manifest.

    Returns:
      File, `NAME.bpte`.
    """
    bundled = ctx.actions.declare_file(plans.name + ".bpte")
    run_driver(
        ctx,
        _arguments(ctx, bundle_arguments(
            plans,
            manifest,
            repository_path(manifest),
            inputs,
            lowered,
            bundled,
            variant,
            parameters,
        )),
        inputs = depset(
            [manifest, lowered.pte, reported.index] + lowered.named_data.values() +
            _files(read_by("", inputs)),
            transitive = [inputs.source_files],
        ),
        outputs = [bundled],
        mnemonic = "ExecutorchBundle",
        progress = "Bundling",
        torch = True,
    )
    return bundled

def etrecord_program(ctx, plans, inputs, export, lowered):
    """Declares ExecutorchEtrecord, which writes ETRecords for ExecuTorch's Inspector. Bazel runs it if somebody asks for them.

    It lowers all methods once more, and fails if this makes another program.

    Args:
      ctx: the context of the rule.
      plans: the result of `plan_program`.
      inputs: the result of `program_inputs`.
      export: the result of `export_program`.
      lowered: the result of `lower_program`.

    Returns:
      File, the directory `NAME.etrecord` with `METHOD.etrecord` for each method.
    """
    directory = ctx.actions.declare_directory(plans.name + ".etrecord")
    messages = _messages(ctx, plans, "etrecord")
    run_driver(
        ctx,
        _arguments(ctx, etrecord_arguments(plans, export, inputs, lowered.pte, directory) + messages.arguments),
        inputs = [plans.lower, export.directory, export.lines, lowered.pte] + export.exported_methods.values() +
                 _files(read_by("program", inputs)) + messages.inputs,
        outputs = [directory] + messages.outputs,
        unused_inputs_list = messages.unused,
        mnemonic = "ExecutorchEtrecord",
        progress = "Lowering once more, for ETRecords of",
        torch = True,
        worker = True,
    )
    return directory
