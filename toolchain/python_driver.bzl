"""The rule python_driver: Python sources and their packages as one executable."""

load(":configuration.bzl", "PythonInfo")
load(":runfiles.bzl", "RUNFILES_INIT", "RUNFILES_LIBRARY", "quoted", "runfiles_path")
load(":split_packages.bzl", "INTERPRETER_HINT")

_MAIN = "etbuild/__main__.py"

# Copies each file of "$@" to a path in the directory $1: a path and its file take turns. Lists the files in the file $2.
_COPY = """
directory=$1; digests=$2; shift 2
while [ $# -gt 0 ]; do
  mkdir -p "$directory/${1%/*}"
  cp -L "$2" "$directory/$1"
  shift 2
done
(cd "$directory"; find . -type f | LC_ALL=C sort | xargs cksum) > "$digests"
"""

def _package(ctx):
    """Returns a directory with the sources, and a file that lists them.

    An action with one directory starts faster than one with 300 files. Bazel 7 does not look into a directory to find out
    whether a worker has to start again; so the list of files is there too.
    """
    digests = ctx.actions.declare_file(ctx.label.name + ".sources.txt")
    directory = ctx.actions.declare_directory(ctx.label.name + ".sources")
    root = ctx.file.main.short_path[:-len(_MAIN)]
    arguments = ctx.actions.args()
    arguments.add(directory.path)
    arguments.add(digests)
    for file in ctx.files.srcs:
        if not file.short_path.startswith(root):
            fail("{}: `srcs`: {} is not in the directory of {}".format(ctx.label, file.short_path, ctx.file.main.short_path))
        arguments.add(file.short_path[len(root):])
        arguments.add(file)
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [directory, digests],
        arguments = [arguments],
        command = _COPY,
        mnemonic = "CopyDriver",
        progress_message = "Copying the driver of %s" % ctx.label,
    )
    return [directory, digests]

def _python_driver_impl(ctx):
    package, digests = _package(ctx)

    # The suffix is needed: a directory in the same runfiles may have the name of the target.
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        substitutions = {
            "%{hint}": INTERPRETER_HINT,
            "%{main}": _MAIN,
            "%{on_demand}": quoted(runfiles_path(ctx, ctx.file._on_demand)),
            "%{packages}": quoted(runfiles_path(ctx, ctx.file.packages)),
            "%{package}": quoted(runfiles_path(ctx, package)),
            "%{python}": ctx.attr._python[PythonInfo].path,
            "%{runfiles}": RUNFILES_INIT,
        },
        is_executable = True,
    )
    files = ctx.files.interpreter + [package, digests, ctx.file.packages, ctx.file._on_demand]
    runfiles = ctx.runfiles(files)
    runfiles = runfiles.merge(ctx.attr._runfiles[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = launcher, files = depset([launcher]), runfiles = runfiles)]

_PYTHON_DRIVER_ATTRS = {
    "interpreter": attr.label(
        doc = "The description of the Python that runs the sources: its version and digests. No file of it is read; it makes " +
              "actions with another Python differ.",
        allow_single_file = True,
    ),
    "main": attr.label(
        doc = "The `etbuild/__main__.py` of the Python package. It is one of `srcs`.",
        allow_single_file = True,
        mandatory = True,
    ),
    "packages": attr.label(
        doc = "The PEX file that `packages_repository` builds, or the directory that `split_packages` makes from it.",
        allow_single_file = True,
        mandatory = True,
    ),
    "srcs": attr.label_list(
        doc = "All files of the Python package.",
        allow_files = True,
    ),
    "_launcher": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:launch.sh"),
    ),
    "_on_demand": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:on_demand.py"),
    ),
    "_python": attr.label(
        default = Label("//toolchain:python"),
    ),
    "_runfiles": attr.label(
        default = RUNFILES_LIBRARY,
    ),
}

python_driver = rule(
    implementation = _python_driver_impl,
    doc = "Python sources that run with packages. A change to the sources does not build a new PEX file.",
    attrs = _PYTHON_DRIVER_ATTRS,
    executable = True,
)
