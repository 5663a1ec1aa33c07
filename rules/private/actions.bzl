"""Declares the actions of `program_actions.bzl` in Bazel, and gives them the files of a target."""

load("//rules:providers.bzl", "ExecutorchExportInfo")
load("//toolchain:steps.bzl", "STEPS")
load("//toolchain:toolchain.bzl", "TOOLCHAIN_TYPE")
load(":bazel4.bzl", "RUNS_VALIDATIONS")
load(":common.bzl", "import_paths_error", "inputs_error", "plugins_of")
load(":driver.bzl", "actions_of", "driver_arguments", "plugins_for", "run_driver")
load(":facts.bzl", "INPUTS")
load(":library.bzl", "data_of", "installed_of")
load(":names.bzl", "named_as", "named_beside", "place")
load(":program_actions.bzl", "path_argument")

def check(error):
    """Fails if there is an error.

    Args:
      error: (attribute, what is wrong), or None.
    """
    if error:
        fail(error[1], attr = error[0])

def _declare(ctx, name, dir = False):
    return ctx.actions.declare_directory(name) if dir else ctx.actions.declare_file(name)

# The functions of Bazel that `program_actions.bzl` needs.
BAZEL = struct(declare = _declare, export_info = ExecutorchExportInfo, runs_validations = RUNS_VALIDATIONS)

def program_inputs(ctx, manifest, libraries):
    """Gives each input file of a target the name that the manifest and the sources use for it.

    Args:
      ctx: the context of the rule.
      manifest: File, the manifest. Names are relative to its directory.
      libraries: list of ExecutorchLibraryInfo, the libraries that the sources import. Their data is data of the program,
        unless another attribute has the file.

    Returns:
      struct with these fields. A named file is a struct(name, file).

      - `sources`: depset of named files, the sources, including those of the libraries.
      - `source_files`: depset of File, the same files.
      - `installed`: depset, the Python packages that the libraries need.
      - `data`, `weights`, `tokenizer`, `adapters`: lists of named files.
    """
    renamed = {attribute: getattr(ctx.attr, attribute + "_as") for attribute, row in INPUTS.items() if row.renamed}
    files = {
        attribute: named_beside(getattr(ctx.files, attribute), manifest) + named_as(renamed.get(attribute, {}), attribute + "_as")
        for attribute in INPUTS
    }
    known = {entry.file: True for named in files.values() for entry in named}
    of_libraries = [file for file in data_of(libraries).to_list() if file not in known]
    files["data"] = files["data"] + named_beside(of_libraries, manifest)
    own = named_beside(ctx.files.srcs, manifest)
    named = struct(
        installed = installed_of(libraries),
        source_files = depset(ctx.files.srcs, transitive = [library.files for library in libraries]),
        sources = depset(own, transitive = [library.sources for library in libraries]),
        **files
    )
    check(inputs_error(own, named, [attribute for attribute, names in renamed.items() if names], place))
    check(import_paths_error(named.sources.to_list(), place))
    return named

def _directory(file):
    return file.dirname

def _source_argument(source):
    return "--source={}={}".format(source.name, source.file.path)

def _data_argument(data):
    return "--data={}={}".format(data.name, data.file.path)

_NAMED = {"--data": _data_argument, "--source": _source_argument}

def _add_named(arguments, item, target, inputs, transitive):
    """Adds files with names to Args, and to the inputs of an action: a list of files, and one of depsets."""
    if not item.named:
        return
    arguments.add_all(item.named, map_each = _NAMED[item.option])
    if item.option == "--source":
        transitive.append(target.inputs.source_files)
    else:
        inputs.extend([entry.file for entry in item.named])

def _add_path(arguments, item):
    """Adds a path to Args. Each kind of call keeps less in memory than a call for all of them."""
    if item.parent:
        arguments.add_all([item.file], map_each = _directory, expand_directories = False)
    elif item.file.is_directory:
        arguments.add_all([item.file], format_each = item.format, expand_directories = False)
    else:
        arguments.add(item.file, format = item.format)

def _messages(ctx, target, action, positions):
    """Returns the arguments with which messages of an action name lines, and the file with unused inputs or None.

    The files with the lines are inputs, and a successful action lists them for Bazel as unused: if only lines move, it
    does not run again. Planning lists the plug-ins that the program does not use. Remote caches know no unused inputs, so
    the flag `//toolchain:lines` can leave the lines out.
    """
    if not action.messages or not ctx.toolchains[TOOLCHAIN_TYPE].lines:
        return [], None
    unused = ctx.actions.declare_file("{}.{}.unused_inputs".format(target.name, action.messages))
    arguments = [path_argument("--unused-inputs=%s", unused)]
    arguments += [path_argument("--positions=%s", positions)] if action.kind != "plan" else []
    return arguments + ([path_argument("--lines=%s", action.lines)] if action.lines else []), unused

def run_actions(ctx, target, plans, actions):
    """Declares actions.

    Args:
      ctx: the context of the rule.
      target: struct, what the target says.
      plans: struct of `export_actions`.
      actions: list of struct.
    """
    of_target = actions_of(ctx)
    for action in actions:
        messages, unused = _messages(ctx, target, action, plans.positions)
        outputs = action.outputs + ([unused] if unused else [])
        arguments = driver_arguments(ctx, action.arguments[0], of_target)
        inputs, transitive = list(action.more_inputs), []
        verb = action.kind if action.kind in STEPS else None
        named = plugins_of(target) if verb == "plan" else []  # which hands those that the program uses on to the others
        plugins = [path_argument("--plugin=%s", file) for file in plugins_for(ctx, verb, named)] if named else []
        for item in plugins + action.arguments[1:] + messages:
            if type(item) == "string":
                arguments.add(item)
            elif hasattr(item, "named"):
                _add_named(arguments, item, target, inputs, transitive)
            else:
                _add_path(arguments, item)
                if item.file not in outputs:
                    inputs.append(item.file)
        run_driver(
            ctx,
            arguments,
            inputs = depset(inputs, transitive = transitive),
            of_target = of_target,
            outputs = outputs,
            unused_inputs_list = unused,
            mnemonic = "Executorch" + action.kind.capitalize(),
            verb = verb,
            progress = action.progress,
            torch = action.torch,
            worker = action.worker,
        )
