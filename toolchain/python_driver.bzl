"""The rule python_driver: Python sources and their packages as one executable."""

load(":configuration.bzl", "PythonInfo")
load(":runfiles.bzl", "RUNFILES_INIT", "RUNFILES_LIBRARY", "quoted", "runfiles_path")
load(":split_packages.bzl", "INTERPRETER_HINT")

def _python_driver_impl(ctx):
    # The suffix is needed: a directory in the same runfiles may have the name of the target.
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        substitutions = {
            "%{hint}": INTERPRETER_HINT,
            "%{main}": quoted(runfiles_path(ctx, ctx.file.main)),
            "%{on_demand}": quoted(runfiles_path(ctx, ctx.file._on_demand)),
            "%{packages}": quoted(runfiles_path(ctx, ctx.file.packages)),
            "%{python}": ctx.attr._python[PythonInfo].path,
            "%{runfiles}": RUNFILES_INIT,
        },
        is_executable = True,
    )
    files = ctx.files.srcs + ctx.files.interpreter + [ctx.file.main, ctx.file.packages, ctx.file._on_demand]
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
        doc = "The `__main__.py` of the Python package.",
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
