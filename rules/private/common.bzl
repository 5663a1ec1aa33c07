"""What the rules for Bazel and for Buck2 share: names, and checks of attributes. `program_actions.bzl` has the actions.

This file uses only what Starlark has in both: no `native`, no `File`, no `fail(attr = ...)`. So a check returns the
problem as a text, or None. A file is whatever the build system calls a file: these functions only pass it on, or ask
for its `basename`.
"""

load(":facts.bzl", "ANY_PLUGIN", "CHARACTERS", "GGUF_SUFFIX", "INPUTS", "NOT_TAGS", "PLUGINS", "RESOURCE_SETS", "WEIGHTS_SUFFIXES")

# The whole environment of an action. It has nothing from the user, and no home directory.
ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}

def hint_arguments(target, command):
    """Returns the arguments with which the driver's hints say what to change in a target.

    Args:
      target: string, the label of the target.
      command: string, the words that run the driver in the build system.

    Returns:
      list of string.
    """
    return ["--rule-target=" + target, "--rule-command=" + command]

def attribute_options(attribute, option, values):
    """Returns the arguments with the values of an attribute. Errors and hints then name the attribute in place of the option.

    Args:
      attribute: string.
      option: string, the option of the driver, such as `--tag`.
      values: list of string; empty if the target does not have the attribute. A hint can name it then, too.

    Returns:
      list of string.
    """
    return ["--rule-attribute={}={}".format(option, attribute)] + ["{}={}".format(option, value) for value in values]

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

# An action that imports torch takes this much memory for small models, and this many times the size of the weights: lowering
# Qwen2.5-0.5B, 942 MB in bfloat16, took 5.1 GB.
DEFAULT_MEMORY = 1500
_MEMORY_OF_WEIGHTS = 4

def resource_set_for(megabytes):
    """Returns the memory to reserve for an action that imports torch.

    Args:
      megabytes: int, the known size of weights.

    Returns:
      string, a key of `RESOURCE_SETS`, or `default`.
    """
    wanted = DEFAULT_MEMORY + _MEMORY_OF_WEIGHTS * megabytes
    fitting = [name for name, size in RESOURCE_SETS.items() if size >= wanted]
    return "default" if not megabytes else fitting[0] if fitting else list(RESOURCE_SETS)[-1]

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
    """Says whether a tag is not a name, occurs twice, or would have the name of another output.

    Args:
      tags: list of string.

    Returns:
      string, or None.
    """
    for tag in tags:
        if tag in NOT_TAGS:
            return "'{}' cannot be a tag: NAME.{} is another output. Choose another name".format(tag, tag)
    return names_error(tags)

def attributes_error(target):
    """Says which attribute of a program is wrong: one of those that repeat the manifest, or `parameters`.

    Args:
      target: struct with `methods`, `backends`, `plugins`, `named_data`, `sharded_named_data` and `parameters`.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    for attribute, error in (
        ("methods", names_error(target.methods)),
        ("backends", names_error(target.backends)),
        ("plugins", _plugins_error(target.plugins)),
        ("named_data", tags_error(target.named_data)),
        ("sharded_named_data", tags_error(target.sharded_named_data)),
        ("sharded_named_data", tags_error(target.named_data + target.sharded_named_data)),
        ("parameters", _parameters_error(target.parameters)),
    ):
        if error:
            return attribute, error
    return None

def _plugins_error(plugins):
    """Says whether there is no such plug-in, or whether a target names one twice."""
    for plugin in plugins:
        if plugin not in PLUGINS and plugin != ANY_PLUGIN:
            return "there is no plug-in '{}' for programs. It is one of: {}".format(plugin, ", ".join(PLUGINS))
    return names_error(plugins)

def plugins_of(target):
    """Returns the names of the plug-ins that the actions of a program have: those that it names, and those of its `backends`.

    Args:
      target: struct with `backends` and `plugins`.

    Returns:
      list of string, some of `PLUGINS`.
    """
    every = ANY_PLUGIN in target.plugins
    return [
        plugin
        for plugin, backends in PLUGINS.items()
        if every or plugin in target.plugins or [each for each in backends if each in target.backends]
    ]

def _parameters_error(parameters):
    """Says whether the value of a parameter cannot be an argument."""
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
    """Says whether two files have the same import path: Python would import only one of them, chosen by chance.

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
    """Returns the kind of file with weights that a path names, or None if its suffix does not show it."""
    return _KINDS.get("." + path.rpartition(".")[2])

def _kinds_error(named, place):
    """Says whether a file has the name of another kind of file: the driver reads a file as its name says."""
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
        # The tokenizer is checked apart: one of its files may be data, too.
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

# Kinds of files that the driver reads in different ways. Other suffixes, such as `.bin`, do not show the kind.
_KINDS = {".ckpt": "torch.save", GGUF_SUFFIX: "GGUF", ".pt": "torch.save", ".pth": "torch.save", ".safetensors": "safetensors"}

# The error of a target that has `export` and `lowered`.
BOTH_EXPORTS = ("export", "write `export` or `lowered`: the target of `lowered` has the exported methods too")

# The error of a target whose `lowered` has no lowered methods.
NOTHING_LOWERED = ("lowered", "a backend of this target compiles weights: leave out `lowered`")

# The end of the name of the target that the programs of all checkpoints share.
TEMPLATE = "template"

def _for_names(text):
    """Returns a text with `_` in place of each character that the name of a checkpoint cannot have."""
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
    files = {}
    for label in labels:
        file = label[1:] if label.startswith(":") else label
        if file in files:
            return {}, "'{}' and '{}' are one file: keep one".format(files[file], label)
        files[file] = label
    paths = [label.replace("@", "").replace("//", "/").replace(":", "/").split("/") for label in files]
    one_name = len(labels) > 1 and len({path[-1]: True for path in paths}) == 1
    named = {}
    for label, path in zip(labels, paths):
        name = _for_names((path[-2] if len(path) > 1 else "") if one_name else _stem(path[-1]))
        if not name:
            return {}, "'{}' has the name of others, and no folder to be called after: write a dictionary of names to checkpoints".format(label)
        if name in named:
            return {}, "'{}' and '{}' would both be called '{}': write a dictionary of names to checkpoints".format(
                named[name],
                label,
                name,
            )
        named[name] = label
    return named, None

def export_error(target, sources, export_sources, place):
    """Says why a program cannot use the exported methods of another target.

    Args:
      target: struct with `methods`, `inputs`, and `export`: ExecutorchExportInfo of the other target.
      sources: list of struct(name, file), the sources of the program and of its libraries.
      export_sources: the same of the other target.
      place: function from a file to a string: where it is, in any configuration.

    Returns:
      (string, string): the attribute and what is wrong; or None.
    """
    export = target.export
    if len(target.methods) > 1 and sorted(target.methods) != sorted(export.exported_methods):
        return "methods", "the target of `export` does not list these `methods`: list the same, or none"
    for attribute, ours, theirs in (
        ("srcs", sources, export_sources),
        ("data", target.inputs.data, export.data),
    ):
        ours = {entry.name: entry.file for entry in ours}
        theirs = {entry.name: entry.file for entry in theirs}
        if ours == theirs:
            continue
        places = {name: place(file) for name, file in ours.items()}
        if places == {name: place(file) for name, file in theirs.items()}:  # the same targets make them
            other = [places[name] for name, file in ours.items() if file != theirs[name]][0]
            return "export", "the target of `export` has another configuration, and so another {}: {}".format(
                other,
                "write the same `configuration` in both targets",
            )
        return attribute, "the target of `export` has other files: write the same `{}`".format(
            attribute + ("` and `deps" if attribute == "srcs" else ""),
        )
    return None
