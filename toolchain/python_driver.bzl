"""The rule python_driver: Python sources and their packages as one executable."""

load(":runfiles.bzl", "RUNFILES_INIT", "RUNFILES_LIBRARY", "runfiles_path")

def _python_driver_impl(ctx):
    # The suffix is needed: a directory in the same runfiles may have the name of the target.
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        substitutions = {
            "%{main}": runfiles_path(ctx, ctx.file.main),
            "%{packages}": runfiles_path(ctx, ctx.file.packages),
            "%{runfiles}": RUNFILES_INIT,
        },
        is_executable = True,
    )
    runfiles = ctx.runfiles(ctx.files.srcs + [ctx.file.main, ctx.file.packages])
    runfiles = runfiles.merge(ctx.attr._runfiles[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = launcher, files = depset([launcher]), runfiles = runfiles)]

_PYTHON_DRIVER_ATTRS = {
    "main": attr.label(
        doc = "The `__main__.py` of the Python package.",
        allow_single_file = True,
        mandatory = True,
    ),
    "packages": attr.label(
        doc = "The PEX file that `packages_repository` builds.",
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
    "_runfiles": attr.label(
        default = RUNFILES_LIBRARY,
    ),
}

python_driver = rule(
    implementation = _python_driver_impl,
    doc = "Python sources that run with the packages of a PEX file. A change to the sources does not build a new PEX file.",
    attrs = _PYTHON_DRIVER_ATTRS,
    executable = True,
)
