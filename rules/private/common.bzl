"""What the rules for Bazel and for Buck2 share: names, checks of attributes, and the arguments of the driver.

This file uses only what Starlark has in both: no `native`, no `File`, no `fail(attr = ...)`. So a check returns what is wrong,
as a text, or None. A file is whatever the build system calls a file: these functions only pass it on, or ask for its `basename`.

The arguments of an action are a list. The build system writes each item as one line:

- a string;
- `struct(prefix, file, parent)`: the prefix and the path of a file, or of its directory if `parent`;
- `struct(option, named)`: for each `struct(name, file)` the line `OPTION=NAME=PATH`.
"""

load(":facts.bzl", "CHARACTERS", "GGUF_SUFFIX", "INPUTS", "NOT_TAGS", "TEMPLATES", "WEIGHTS_SUFFIXES")

# The whole environment of an action. It has nothing from the user, and no home directory.
ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}

def hint_arguments(target, command):
    """Returns the arguments with which any verb of the driver tells what to change in a target.

    Args:
      target: string, the label of the target.
      command: string, the words that run the driver in the build system.

    Returns:
      list of string.
    """
    return ["--rule-target=" + target, "--rule-command=" + command]

def read_by(action, inputs):
    """Returns the files that an action reads, besides sources.

    Args:
      action: string, one of those in `INPUTS`; empty for the files of all actions.
      inputs: struct with a list of struct(name, file) for each of `INPUTS`.

    Returns:
      list of struct(name, file).
    """
    return [
        entry
        for attribute, row in INPUTS.items()
        if not action or action in row.reads
        for entry in getattr(inputs, attribute)
    ]

# These characters separate names in arguments of the driver, or are not allowed in file names.
_NOT_IN_NAMES = [",", "/", "=", " ", "\t", "\n"]

def names_error(names):
    """Says whether a name of a method, a backend or a tag is empty, has a character that it must not have, or occurs twice.

    Args:
      names: list of string.

    Returns:
      string, or None.
    """
    seen = {}
    for name in names:
        if name in seen:
            return "'{}' is listed twice".format(name)
        if not name or [char for char in _NOT_IN_NAMES if char in name]:
            return "'{}' is not a name: it must have characters, but no comma, slash, `=` or white space".format(name)
        seen[name] = True
    return None

def tags_error(tags):
    """Says whether a tag is no name, occurs twice, or would have the name of another output.

    Args:
      tags: list of string.

    Returns:
      string, or None.
    """
    for tag in tags:
        if tag in NOT_TAGS:
            return "'{}' cannot be a tag: NAME.{} is another output. Choose another name".format(tag, tag)
    return names_error(tags)

def lists_error(methods, backends, named_data, sharded_named_data):
    """Says which of the attributes that repeat the manifest is wrong.

    Args:
      methods: list of string.
      backends: list of string.
      named_data: list of string.
      sharded_named_data: list of string.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    for attribute, error in (
        ("methods", names_error(methods)),
        ("backends", names_error(backends)),
        ("named_data", tags_error(named_data)),
        ("sharded_named_data", tags_error(sharded_named_data)),
        ("sharded_named_data", tags_error(named_data + sharded_named_data)),
    ):
        if error:
            return attribute, error
    return None

def parameters_error(parameters):
    """Says whether the value of a parameter cannot be an argument.

    Args:
      parameters: dict of string to string.

    Returns:
      string, or None.
    """
    for parameter, value in sorted(parameters.items()):
        if "\n" in value:
            return "the value of '{}' has a line end, which is not allowed".format(parameter)
    return None

def file_name_error(name):
    """Says whether a text cannot be the name that a manifest uses for a file.

    Args:
      name: string.

    Returns:
      string, or None.
    """
    if not name or [part for part in name.split("/") if part in ("", ".", "..")] or "\n" in name:
        return "'{}' is not a name of a file: write a relative path without `..`".format(name)
    return None

def unique_error(named, place, advice = "Keep one of them"):
    """Says whether two files have the same name, or a name has a `=`, which ends a name in the driver's arguments.

    Args:
      named: list of struct(name, file).
      place: function from a file to a string: where it is, for the message.
      advice: string, what to do about two files with the same name.

    Returns:
      string, or None.
    """
    seen = {}
    for entry in named:
        if "=" in entry.name:
            return "'{}' has a `=` in its name, which is not allowed: rename the file".format(entry.name)
        if entry.name in seen and seen[entry.name] == entry.file:
            return "{} is listed twice, as '{}'. Keep one of them".format(place(entry.file), entry.name)
        if entry.name in seen:
            return "two files have the name '{}': {} and {}. {}".format(
                entry.name,
                place(seen[entry.name]),
                place(entry.file),
                advice,
            )
        seen[entry.name] = entry.file
    return None

def import_paths_error(sources, place):
    """Says whether two files have the same import path: Python would import one of them, and which one would be chance.

    Args:
      sources: list of struct(name, file), in which one file can occur twice.
      place: function from a file to a string: where it is, for the message.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    once = {(entry.name, entry.file): entry for entry in sources}.values()
    advice = "Keep one of the libraries in `deps`, or give one another import root (`import_root`, or `imports`)"

    # `imports` of a py_library can name a package itself. Nothing imports a module by the name `__init__`.
    error = unique_error([entry for entry in once if entry.name != "__init__.py"], place, advice)
    return ("deps", error) if error else None

def _kind(path):
    """Returns which kind of file with weights a path names, or None if its suffix does not tell."""
    return _KINDS.get("." + path.rpartition(".")[2])

def _kinds_error(named, place):
    """Says whether a file has the name of a file of another kind: the driver reads a file as its name says."""
    for entry in named:
        kind, wanted = _kind(entry.file.basename), _kind(entry.name)
        if kind and wanted and kind != wanted:
            return "{} is a file of {}, and '{}' is the name of a file of {}. Write another name, also into the manifest".format(
                place(entry.file),
                kind,
                entry.name,
                wanted,
            )
    return None

def inputs_error(sources, inputs, renamed, place):
    """Says which attribute of a program gives two files the same name, or a file the name of another kind of file.

    Args:
      sources: list of struct(name, file), the program's own sources.
      inputs: struct with a list of struct(name, file) for each of `INPUTS`.
      renamed: list of string, those of `INPUTS` for which the target has `NAME_as`.
      place: function from a file to a string: where it is, for the message.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    error = unique_error(sources, place)
    if error:
        return "srcs", error
    named = []
    for attribute in INPUTS:
        # The tokenizer has names of its own: one of its files may be data too.
        named = (named if INPUTS[attribute].renamed else []) + getattr(inputs, attribute)
        error = unique_error(named, place) or _kinds_error(getattr(inputs, attribute), place)
        if error:
            return attribute + ("_as" if attribute in renamed else ""), error
    return None

def below(path, directory):
    """Returns a path relative to a directory.

    Args:
      path: string, a path in a repository.
      directory: string, a path in the same repository; empty for its root.

    Returns:
      string, or None if the path is not below the directory.
    """
    if not directory:
        return path
    return path[len(directory) + 1:] if path.startswith(directory + "/") else None

def beside(path, manifest):
    """Returns the name of a file in a program.

    Args:
      path: string, the path of the file in its repository.
      manifest: string, the path of the manifest in the same repository; None if the file is in another one.

    Returns:
      string, the path relative to the manifest's directory. If the file is not below that directory, its path.
    """
    relative = below(path, manifest.rpartition("/")[0]) if manifest else None
    return relative or path

def import_root(package, root):
    """Returns the directory where the import paths of a library start.

    Args:
      package: string, the package of the library.
      root: string, relative to the package; empty or None for the root of the repository.

    Returns:
      string, a path in the repository; None if it is not below the package.
    """
    if not root:
        return ""
    if root.startswith("/") or ".." in root.split("/"):
        return None
    return "/".join([part for part in package.split("/") + root.split("/") if part not in ("", ".")])

def name_with_variant(name, variant):
    """Returns the name of a program.

    Args:
      name: string, the name of its target.
      variant: string, a variant of the manifest; empty for the manifest without one.

    Returns:
      string: `NAME.VARIANT`, also if the target is called so.
    """
    return name if not variant or name.endswith("." + variant) else "{}.{}".format(name, variant)

# What the driver reads in different ways. Other suffixes, such as `.bin`, say little about what is in a file.
_KINDS = {".ckpt": "torch.save", GGUF_SUFFIX: "GGUF", ".pt": "torch.save", ".pth": "torch.save", ".safetensors": "safetensors"}

# The target with what the programs of all checkpoints share ends so.
TEMPLATE = "template"

def _for_names(text):
    """Returns a text with `_` for each character that the name of a checkpoint cannot have."""
    return "".join([text[at] if text[at] in CHARACTERS else "_" for at in range(len(text))])

def _stem(file):
    """Returns the name of a file with weights without its suffix."""
    for suffix in WEIGHTS_SUFFIXES:
        if file.endswith(suffix):
            return file[:-len(suffix)]
    return file

def checkpoints_error(names):
    """Says whether a name cannot be that of a checkpoint in the name of a program.

    Args:
      names: list of string.

    Returns:
      string, or None.
    """
    for name in names:
        if not name or name.startswith("-") or _for_names(name) != name:
            return "'{}' is not a name for a checkpoint: it may have letters, digits, `_` and `-`".format(name)
        if name in NOT_TAGS + [TEMPLATE]:
            return "'{}' cannot be the name of a checkpoint: NAME.{} is something else. Choose another name".format(name, name)
    return None

def checkpoints_of_gguf_error(labels, checkpoint_as):
    """Says whether one of several checkpoints is a GGUF file, which the export reads: the programs would not share it.

    Args:
      labels: list of string, labels of the checkpoints.
      checkpoint_as: string, the name that the manifest uses for a checkpoint.

    Returns:
      string, or None.
    """
    for label in [str(label) for label in labels] + [checkpoint_as]:
        if label.endswith(GGUF_SUFFIX):
            return ("'{}' cannot be one of several checkpoints: the export reads GGUF files, and checkpoints share one export. " +
                    "Write an `executorch_program` for each, with the file in `data` or `data_as`").format(label)
    return None

def checkpoint_names(labels):
    """Names checkpoints like their files, or like the folders of these if all files have one name.

    `etbuild build --weights` does the same.

    Args:
      labels: list of string, labels of the checkpoints.

    Returns:
      (dict of name to label, string): the string says what is wrong, or is None.
    """
    paths = [label.replace("@", "").replace("//", "/").replace(":", "/").split("/") for label in labels]
    one_name = len(labels) > 1 and len({path[-1]: True for path in paths}) == 1
    named = {}
    for label, path in zip(labels, paths):
        name = _for_names((path[-2] if len(path) > 1 else "") if one_name else _stem(path[-1]))
        if name in named:
            return {}, "'{}' and '{}' would both be called '{}': write a dictionary of names to checkpoints".format(
                named[name],
                label,
                name,
            )
        named[name] = label
    return named, None

def export_error(plans, inputs, export, sources, export_sources, place):
    """Says why a program cannot use the exported methods of another target.

    Args:
      plans: struct with `method_plans`.
      inputs: struct with `data`, a list of struct(name, file).
      export: struct with `data` and `exported_methods` of the other target.
      sources: list of struct(name, file), the sources of the program and of its libraries.
      export_sources: the same of the other target.
      place: function from a file to a string: where it is, in any configuration.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    if plans.method_plans and sorted(plans.method_plans) != sorted(export.exported_methods):
        return "methods", "the target of `export` does not list these `methods`: list the same, or none"
    for attribute, ours, theirs in (
        ("srcs", sources, export_sources),
        ("data", inputs.data, export.data),
    ):
        ours = {entry.name: entry.file for entry in ours}
        theirs = {entry.name: entry.file for entry in theirs}
        if ours == theirs:
            continue
        places = {name: place(file) for name, file in ours.items()}
        if places == {name: place(file) for name, file in theirs.items()}:  # made by the same targets
            other = [places[name] for name, file in ours.items() if file != theirs[name]][0]
            return "export", "the target of `export` has another configuration, and so another {}: {}".format(
                other,
                "write the same `configuration` in both targets",
            )
        return attribute, "the target of `export` has other files: write the same `{}`".format(
            attribute + ("` and `deps" if attribute == "srcs" else ""),
        )
    return None

def _path(prefix, file, parent = False):
    return struct(file = file, parent = parent, prefix = prefix)

def _named(option, named):
    return struct(named = named, option = option)

def plan_arguments(
        plans,
        manifest,
        manifest_path,
        positions,
        methods = [],
        backends = [],
        variant = "",
        parameters = {},
        export_plan = None,
        inputs = None,
        manifest_name = ""):
    """Returns the arguments of the driver's verb `plan`.

    Args:
      plans: struct with the fields `name`, `named_data`, `sharded_named_data`, `whole`, `export`, `lower`, `compare` and
        `method_plans`.
      manifest: file.
      manifest_path: string, its path in its repository.
      positions: file, for line numbers.
      methods: list of string.
      backends: list of string.
      variant: string.
      parameters: dict of string to string.
      export_plan: file, the plan of the export that this program uses, or None.
      inputs: dict from each of `INPUTS` to the names of its files, or None. The name of a directory ends with a slash.
      manifest_name: string.

    Returns:
      list of arguments.
    """
    arguments = [
        "plan",
        _path("", manifest),
        "--manifest-name=" + manifest_path,
        "--expect-name=" + (manifest_name or plans.name),
    ]
    if manifest_name:
        arguments.append("--program-name=" + plans.name)
    if variant:
        arguments.append("--variant=" + variant)
    for parameter, value in sorted(parameters.items()):
        arguments.append("--set={}={}".format(parameter, value))
    if export_plan:
        arguments.append(_path("--same-export=", export_plan))
    if methods:
        arguments.append("--expect-methods=" + ",".join(methods))
    if backends:
        arguments.append("--expect-backends=" + ",".join(backends))
    arguments.append("--expect-named-data=" + ",".join(plans.named_data + plans.sharded_named_data))
    arguments.append("--expect-sharded=" + ",".join(plans.sharded_named_data))
    if inputs != None:
        arguments.append("--expect-inputs")
        arguments.extend(["--input={}={}".format(attribute, name) for attribute, names in inputs.items() for name in names])
    arguments.extend([
        _path("--plan=", plans.whole),
        _path("--export-plan=", plans.export),
        _path("--lower-plan=", plans.lower),
        _path("--compare-plan=", plans.compare),
    ])
    arguments.extend([_path("--method-plan={}=".format(method), plan) for method, plan in plans.method_plans.items()])
    return arguments + [_path("--positions=", positions)]

def messages_arguments(positions, lines, unused):
    """Returns the arguments that let messages of a verb name lines.

    Args:
      positions: file with the line numbers of the manifest.
      lines: file with the lines of the sources, or None.
      unused: file that the verb writes: the list of these two.

    Returns:
      list of arguments.
    """
    return [_path("--positions=", positions), _path("--unused-inputs=", unused)] + ([_path("--lines=", lines)] if lines else [])

def export_arguments(plans, inputs, export):
    """Returns the arguments of the driver's verb `export`.

    Args:
      plans: struct with `export`.
      inputs: struct with `sources` and each of `INPUTS`.
      export: struct with the outputs: `directory`, `exported_methods`, `input_digests`, `lines`, `examples`.

    Returns:
      list of arguments.
    """
    return [
        "export",
        _path("", plans.export),
        _named("--source", inputs.sources),
        _named("--data", read_by("export", inputs)),
        _path("--inputs=", export.input_digests),
        _path("--lines=", export.lines),
        _path("--examples=", export.examples),
    ] + [
        _path("--method={}=".format(method), exported)
        for method, exported in export.exported_methods.items()
    ] + ["-o", _path("", export.directory)]

def _lower_arguments(plan, export, methods, named):
    return ["lower", _path("", plan), "--export", _path("", export.directory)] + [
        _path("--exported={}=".format(method), export.exported_methods[method])
        for method in methods
    ] + [
        _named("--data", named),
        "--jobs=1",  # the build system decides which actions run at the same time
    ]

def compiles_weights(backends):
    """Says whether a backend may compile the content of weights into the methods that it takes.

    Args:
      backends: list of string, all backends of a program; empty if they are not known.

    Returns:
      bool.
    """
    return bool([backend for backend in backends if backend not in TEMPLATES])

def template_steps(plans, export, inputs):
    """Returns the actions that lower methods by themselves: one for each method, if a target lists several; else one.

    They read no weights: an action that binds what they make writes the program. So all checkpoints, and a cache for several
    machines, share them. Where a backend compiles weights, each of several methods is still lowered by an action of its own.

    Args:
      plans: struct with `lower`, `method_plans` and `compiles_weights`.
      export: struct with `exported_methods`.
      inputs: struct with each of `INPUTS`.

    Returns:
      list of struct: `name`, the end of the name of the directory that the action writes; `plan`, a file; `methods`, the names
      of the exported methods outside of the export's directory that it reads; `weights`, whether it reads weights; `files`,
      list of struct(name, file).
    """
    files = read_by("template", inputs)
    if not plans.method_plans:
        methods = export.exported_methods.keys()
        return [struct(name = "methods", files = files, methods = methods, plan = plans.lower, weights = False)]
    weights = plans.compiles_weights
    files = files + (inputs.weights if weights else [])
    return [
        struct(name = method, files = files, methods = [method], plan = plan, weights = weights)
        for method, plan in plans.method_plans.items()
    ]

def template_arguments(step, export, lowered):
    """Returns the arguments of the driver's verb `lower` that lowers methods by themselves.

    Args:
      step: struct, one of `template_steps`.
      export: struct with `directory` and `exported_methods`.
      lowered: the directory that the action writes.

    Returns:
      list of arguments.
    """
    flags = ["--templates"] + (["--with-weights"] if step.weights else [])
    return _lower_arguments(step.plan, export, step.methods, step.files) + flags + ["-o", _path("", lowered)]

def lower_arguments(plans, export, inputs, templates, lowered):
    """Returns the arguments of the driver's verb `lower` that writes the program.

    Args:
      plans: struct with `lower`.
      export: struct with `directory` and `exported_methods`.
      inputs: struct with each of `INPUTS`.
      templates: list of the directories with the methods that are lowered by themselves.
      lowered: struct with the files `facts` and `computed`. The program and its named data are in the directory of `facts`.

    Returns:
      list of arguments.
    """
    return _lower_arguments(plans.lower, export, export.exported_methods, read_by("program", inputs)) + [
        _path("--lowered=", template)
        for template in templates
    ] + [_path("--computed=", lowered.computed), "-o", _path("", lowered.facts, parent = True)]

def compare_arguments(plans, export, inputs, lowered, result):
    """Returns the arguments of the driver's verb `compare`.

    Args:
      plans: struct with `compare`.
      export: struct with `directory`, `exported_methods` and `examples`.
      inputs: struct with `sources` and each of `INPUTS`.
      lowered: struct with `pte`, `named_data`, `facts` and `computed`.
      result: file that the action writes.

    Returns:
      list of arguments.
    """
    return ["compare", _path("", plans.compare), "--export", _path("", export.directory)] + [
        _path("--exported={}=".format(method), exported)
        for method, exported in export.exported_methods.items()
    ] + [
        _path("--examples=", export.examples),
        _named("--source", inputs.sources),
        _named("--data", read_by("program", inputs)),
        _path("--computed=", lowered.computed),
        _path("--lowering=", lowered.facts),
        _path("--program=", lowered.pte),
    ] + [_path("--named-data=", file) for file in lowered.named_data.values()] + [
        "--jobs=1",
        "-o",
        _path("", result),
    ]

def reproduce_arguments(plans, inputs, export, lowered, artifacts, stamp):
    """Returns the arguments of the driver's verb `reproduce`.

    Args:
      plans: struct with `export` and `lower`.
      inputs: struct with `sources` and each of `INPUTS`.
      export: struct with the outputs of the export.
      lowered: struct with `templates`.
      artifacts: list of files that the second build compares.
      stamp: file that the action writes.

    Returns:
      list of arguments.
    """
    return [
        "reproduce",
        _path("", plans.export),
        _path("", plans.lower),
        _named("--source", inputs.sources),
        _named("--data", read_by("program", inputs)),
    ] + [_path("--against=", artifact) for artifact in artifacts] + [
        "--export",
        _path("", export.directory),
        _path("--inputs=", export.input_digests),
        _path("--lines=", export.lines),
        _path("--examples=", export.examples),
    ] + [
        _path("--exported={}=".format(method), exported)
        for method, exported in export.exported_methods.items()
    ] + [
        _path("--lowered=", directory)
        for directory in lowered.templates
    ] + [_path("--stamp=", stamp)]

def report_arguments(plans, export, lowered, tokenizer, index):
    """Returns the arguments of the driver's verb `report`.

    Args:
      plans: struct with `whole`.
      export: struct with `input_digests`.
      lowered: struct with `facts`.
      tokenizer: list of struct(name, file), the files of the tokenizer.
      index: file. The other outputs are in the same directory.

    Returns:
      list of arguments.
    """
    return [
        "report",
        _path("", plans.whole),
        _path("--inputs=", export.input_digests),
        _path("--lowering=", lowered.facts),
        _named("--data", tokenizer),
        "-o",
        _path("", index, parent = True),
    ]

def bundle_arguments(plans, manifest, manifest_path, inputs, lowered, bundled, variant = "", parameters = {}):
    """Returns the arguments of the driver's verb `bundle`.

    Args:
      plans: struct with `name`.
      manifest: file.
      manifest_path: string, its path in its repository.
      inputs: struct with `sources` and each of `INPUTS`.
      lowered: struct with `pte` and `named_data`.
      bundled: file that the action writes.
      variant: string.
      parameters: dict of string to string.

    Returns:
      list of arguments.
    """
    return [
        "bundle",
        _path("", manifest),
        "--manifest-name=" + manifest_path,
        "--program-name=" + plans.name,
    ] + (["--variant=" + variant] if variant else []) + [
        "--set={}={}".format(parameter, value)
        for parameter, value in sorted(parameters.items())
    ] + [
        _named("--source", inputs.sources),
        _named("--data", read_by("", inputs)),
        _path("--program=", lowered.pte),
    ] + [_path("--named-data=", file) for file in lowered.named_data.values()] + [
        "--declared-only",
        "--no-cache",
        "-o",
        _path("", bundled),
    ]

def etrecord_arguments(plans, export, inputs, pte, directory):
    """Returns the arguments of the driver's verb `etrecord`.

    Args:
      plans: struct with `lower`.
      export: struct with `directory`, `exported_methods` and `lines`.
      inputs: struct with each of `INPUTS`.
      pte: file, the program.
      directory: directory that the action writes.

    Returns:
      list of arguments.
    """
    return ["etrecord", _path("", plans.lower), "--export", _path("", export.directory)] + [
        _path("--exported={}=".format(method), exported)
        for method, exported in export.exported_methods.items()
    ] + [
        _named("--data", read_by("program", inputs)),
        _path("--lines=", export.lines),
        _path("--program=", pte),
        "-o",
        _path("", directory),
    ]
