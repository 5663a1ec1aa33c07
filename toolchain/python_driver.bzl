"""python_driver: the driver's sources and the packages it runs on, as one executable."""

load(":runfiles.bzl", "runfiles_path")

def _python_driver_impl(ctx):
    # With an ending: the package's directory may have the name of the target, and lies in the same runfiles.
    launcher = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._launcher,
        output = launcher,
        substitutions = {
            "%{main}": runfiles_path(ctx, ctx.file.main),
            "%{packages}": runfiles_path(ctx, ctx.file.packages),
        },
        is_executable = True,
    )
    runfiles = ctx.runfiles(ctx.files.srcs + [ctx.file.main, ctx.file.packages])
    return [DefaultInfo(executable = launcher, files = depset([launcher]), runfiles = runfiles)]

python_driver = rule(
    implementation = _python_driver_impl,
    doc = "Python sources that run on the packages of a PEX. To change them costs no new PEX.",
    attrs = {
        "main": attr.label(
            doc = "The `__main__.py` of the sources' package.",
            allow_single_file = True,
            mandatory = True,
        ),
        "packages": attr.label(
            doc = "The PEX of `packages_repository`.",
            allow_single_file = True,
            mandatory = True,
        ),
        "srcs": attr.label_list(
            doc = "All files of the package.",
            allow_files = True,
        ),
        "_launcher": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:launch.sh"),
        ),
    },
    executable = True,
)
