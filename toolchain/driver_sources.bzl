"""The rules driver_sources and driver_plugins: the Python sources of the driver, without the packages that they need."""

load("@rules_executorch_host//:host.bzl", "PYTHON", "PY_INFOS")
load("//rules/private:facts.bzl", "PLUGINS")
load(":configuration.bzl", "INTERPRETER_HINT", "PythonInfo")
load(":steps.bzl", "files_of_plugin")

DriverSourcesInfo = provider(
    doc = "The sources of the driver, as its actions have them.",
    fields = {
        "directory": "File: a directory with the sources.",
        "main": "string: the path of the file in `directory` that Python runs.",
        "together": "File: the names and contents of the files in `directory`.",
    },
)

DriverPluginsInfo = provider(
    doc = "Plug-ins of the driver that only some programs use.",
    fields = {"directories": "dict from the name of each plug-in to File: a directory with its files. It has the plug-in's name."},
)

_MAIN = "etbuild/__main__.py"

# Runs the script $4 with the first Python of $1, $2 and `python3` that there is. $3 is the hint if there is none.
_COPY = """\
set -eu
for python in "$1" python3 "$2"; do
  if found=$(command -v -- "$python"); then
    shift 3
    exec "$found" -I -S "$@"
  fi
done
echo "There is no python3 on this machine (PATH=$PATH). $3" >&2
exit 1
"""

def _files(ctx):
    """Returns the sources by their paths, such as `etbuild/errors.py`."""
    root = ctx.file.main.short_path[:-len(_MAIN)]
    for file in ctx.files.srcs:
        if not file.short_path.startswith(root):
            fail("{}: `srcs`: {} is not in the directory of {}".format(ctx.label, file.short_path, ctx.file.main.short_path))
    return {file.short_path[len(root):]: file for file in ctx.files.srcs}

def _copy(ctx, files, directory, together, texts = False):
    """Copies files, given by their paths in a directory, and writes all of them to another file too.

    Comments, docstrings and help texts stay behind, if not `texts`."""
    python = ctx.attr._python[PythonInfo]
    arguments = ctx.actions.args()
    arguments.add(python.file or python.path)
    arguments.add(PYTHON)
    arguments.add(INTERPRETER_HINT)
    arguments.add(ctx.file._script)
    arguments.add("whole" if texts else "without_texts")
    arguments.add(directory.path)
    arguments.add(together)
    for path, file in files.items():
        arguments.add(path)
        arguments.add(file)
    ctx.actions.run_shell(
        inputs = depset([ctx.file._script] + files.values(), transitive = [python.files]),
        outputs = [directory, together],
        arguments = [arguments],
        command = _COPY,
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        mnemonic = "CopyDriver",
        progress_message = "Copying the driver of %s" % ctx.label,
    )

def _driver_plugins_impl(ctx):
    files, directories = _files(ctx), {}
    for plugin in PLUGINS:
        directories[plugin] = ctx.actions.declare_directory("{}/{}".format(ctx.label.name, plugin))
        together = ctx.actions.declare_file("{}.{}.txt".format(ctx.label.name, plugin))
        start = len("etplugins/{}/".format(plugin))
        own = {"./" + path[start:]: files[path] for path in files_of_plugin(files.keys(), plugin)}
        _copy(ctx, own, directories[plugin], together)
    return [DefaultInfo(), DriverPluginsInfo(directories = directories)]

def _driver_sources_impl(ctx):
    # An action with one directory starts faster than one with 300 files. Bazel 7 does not look into a directory to
    # decide whether a worker must start again. So there is also a file that changes with the directory.
    together = ctx.actions.declare_file(ctx.label.name + ".txt")
    directory = ctx.actions.declare_directory(ctx.label.name)
    _copy(ctx, _files(ctx), directory, together, ctx.attr.texts)
    return [
        DefaultInfo(files = depset([directory]), runfiles = ctx.runfiles([directory, together])),
        DriverSourcesInfo(directory = directory, main = _MAIN, together = together),
    ]

_ATTRS = {
    "main": attr.label(
        doc = "The `etbuild/__main__.py` of the Python package. It is one of `srcs`.",
        allow_single_file = True,
        mandatory = True,
    ),
    "srcs": attr.label_list(
        doc = "All files of the Python package.",
        allow_files = True,
    ),
    "_python": attr.label(
        default = Label("//toolchain:python"),
        providers = [PythonInfo],
    ),
    "_script": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:copy_driver.py"),
    ),
}

driver_sources = rule(
    implementation = _driver_sources_impl,
    doc = "The Python sources of a driver in one directory. All toolchains share it.",
    attrs = dict(
        _ATTRS,
        texts = attr.bool(doc = "Whether comments, docstrings and help texts are copied too. People read them, and actions do not."),
    ),
)

driver_plugins = rule(
    implementation = _driver_plugins_impl,
    doc = "The plug-ins of a driver that only some programs use, each in a directory of its own: an action has some of them.",
    attrs = _ATTRS,
)

def _driver_library_impl(ctx):
    repository = ctx.label.workspace_name or ctx.workspace_name
    sources = [file for file in ctx.files.srcs if file.extension == "py"]
    return [
        DefaultInfo(files = depset(sources), runfiles = ctx.runfiles(ctx.files.srcs)),
    ] + [
        py_info(imports = depset(["{}/{}".format(repository, ctx.label.package)]), transitive_sources = depset(sources))
        for py_info in PY_INFOS
    ]

driver_library = rule(
    implementation = _driver_library_impl,
    doc = "The Python sources of the driver as a library for `py_binary` and `py_test`, without the packages that it needs.",
    attrs = {"srcs": _ATTRS["srcs"]},
)
