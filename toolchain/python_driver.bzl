"""The rule python_driver: Python sources and their packages as one executable."""

load(":configuration.bzl", "INTERPRETER_HINT", "PackagesInfo", "PythonInfo")
load(":driver_sources.bzl", "DriverSourcesInfo")
load(":runfiles.bzl", "RUNFILES_INIT", "RUNFILES_LIBRARY", "quoted", "runfiles_path")

def _command_to_build_again(packages):
    """Returns the command that builds the repository of the packages again. Names with `~` or `+` come from MODULE.bazel."""
    repository = packages.owner.workspace_name
    if "~" in repository or "+" in repository:
        return "bazel fetch --force --repo=@@" + repository
    return "bazel sync --only=" + repository

def _python_driver_impl(ctx):
    sources = ctx.attr.sources[DriverSourcesInfo]
    python = ctx.attr.python[PythonInfo]

    # The suffix is needed, because a directory in the same runfiles may have the name of the target.
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        substitutions = {
            "%{again}": _command_to_build_again(ctx.file.packages),
            "%{hint}": INTERPRETER_HINT,
            "%{main}": sources.main,
            "%{on_demand}": quoted(runfiles_path(ctx, ctx.file._on_demand)),
            "%{packages}": quoted(runfiles_path(ctx, ctx.file.packages)),
            "%{package}": quoted(runfiles_path(ctx, sources.directory)),
            "%{python_file}": quoted(runfiles_path(ctx, python.file) if python.file else ""),
            "%{python_version}": quoted(python.version),
            "%{python}": quoted(python.path),
            "%{runfiles}": RUNFILES_INIT,
        },
        is_executable = True,
    )
    files = ctx.files.interpreter + [sources.directory, sources.together, ctx.file.packages, ctx.file._on_demand]
    runfiles = ctx.runfiles(files, transitive_files = python.files)
    runfiles = runfiles.merge(ctx.attr._runfiles[DefaultInfo].default_runfiles)
    return [
        DefaultInfo(executable = launcher, files = depset([launcher]), runfiles = runfiles),
        ctx.attr.packages[PackagesInfo],
    ]

_PYTHON_DRIVER_ATTRS = {
    "interpreter": attr.label(
        doc = "The description of the Python that runs the sources: its version and digests. No file of it is read; it makes " +
              "actions with another Python differ.",
        allow_single_file = True,
    ),
    "packages": attr.label(
        doc = "The description that `packages_repository` writes, or the directory that `split_packages` makes.",
        allow_single_file = True,
        mandatory = True,
        providers = [PackagesInfo],
    ),
    "python": attr.label(
        doc = "The interpreter where the packages are not unpacked.",
        default = Label("//toolchain:python"),
        providers = [PythonInfo],
    ),
    "sources": attr.label(
        doc = "The sources, a `driver_sources`.",
        mandatory = True,
        providers = [DriverSourcesInfo],
    ),
    "_launcher": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:launch.sh"),
    ),
    "_on_demand": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:on_demand.py"),
    ),
    "_runfiles": attr.label(
        default = RUNFILES_LIBRARY,
    ),
}

python_driver = rule(
    implementation = _python_driver_impl,
    doc = "Python sources that run with packages. A change to the sources fetches no packages.",
    attrs = _PYTHON_DRIVER_ATTRS,
    executable = True,
)
