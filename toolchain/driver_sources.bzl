"""The rules driver_sources and driver_plugins: the Python sources of the driver, without the packages that they need."""

load("@rules_executorch_host//:host.bzl", "PY_INFOS")
load("//rules/private:facts.bzl", "PLUGINS")
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

# Copies files to paths in the directory $1, and all of them to the file $2. The other arguments are pairs: path, file.
_COPY = """
set -eu
directory=$1; together=$2; shift 2
while [ $# -gt 0 ]; do
  mkdir -p "$directory/${1%/*}"
  cp -L "$2" "$directory/$1"
  echo "$1"
  cat "$2"
  shift 2
done > "$together"
"""

def _files(ctx):
    """Returns the sources by their paths, such as `etbuild/errors.py`."""
    root = ctx.file.main.short_path[:-len(_MAIN)]
    for file in ctx.files.srcs:
        if not file.short_path.startswith(root):
            fail("{}: `srcs`: {} is not in the directory of {}".format(ctx.label, file.short_path, ctx.file.main.short_path))
    return {file.short_path[len(root):]: file for file in ctx.files.srcs}

def _copy(ctx, files, directory, together):
    """Copies files, given by their paths in a directory, and writes all of them to another file too."""
    arguments = ctx.actions.args()
    arguments.add(directory.path)
    arguments.add(together)
    for path, file in files.items():
        arguments.add(path)
        arguments.add(file)
    ctx.actions.run_shell(
        inputs = files.values(),
        outputs = [directory, together],
        arguments = [arguments],
        command = _COPY,
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
    _copy(ctx, _files(ctx), directory, together)
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
}

driver_sources = rule(
    implementation = _driver_sources_impl,
    doc = "The Python sources of a driver in one directory. All toolchains share it.",
    attrs = _ATTRS,
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
