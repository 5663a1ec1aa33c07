"""The flags of the command line: whether programs have one configuration, which toolchain builds, and which interpreter."""

# The hint for a machine without the interpreter.
INTERPRETER_HINT = (
    "Install it there, or say where it is: --@rules_executorch//toolchain:python=PATH. " +
    "A hermetic sandbox also needs --sandbox_add_mount_pair=DIRECTORY"
)

FlagInfo = provider(
    doc = "A flag of the command line.",
    fields = {"value": "bool."},
)

def _flag_impl(ctx):
    return [FlagInfo(value = ctx.build_setting_value)]

configuration_flag = rule(
    implementation = _flag_impl,
    build_setting = config.bool(flag = True),
    doc = "A flag of the command line.",
)

def _name_flag_impl(ctx):
    if ctx.build_setting_value not in [""] + ctx.attr.known:
        fail("There is no toolchain `{}`. Known: {}.".format(ctx.build_setting_value, ", ".join(ctx.attr.known)))
    return []

name_flag = rule(
    implementation = _name_flag_impl,
    attrs = {"known": attr.string_list(doc = "The names of all toolchains.")},
    build_setting = config.string(flag = True),
    doc = "A flag of the command line: the name of a toolchain. Empty: the first that runs on the execution platform.",
)

PackagesInfo = provider(
    doc = "The Python packages of a driver.",
    fields = {"names": "list of string: their names, as indexes write them, such as `typing-extensions`."},
)

def _packages_file_impl(ctx):
    return [DefaultInfo(files = depset([ctx.file.file])), PackagesInfo(names = ctx.attr.names)]

packages_file = rule(
    implementation = _packages_file_impl,
    attrs = {
        "file": attr.label(
            doc = "What stands for the packages in keys: a file with their digests, or the packages as a file.",
            allow_single_file = True,
            mandatory = True,
        ),
        "names": attr.string_list(doc = "The names of the packages in it, as indexes write them."),
    },
    doc = "The packages of a `packages_repository`.",
)

PythonInfo = provider(
    doc = "The interpreter on machines without a virtual environment with the packages, such as remote executors.",
    fields = {
        "file": "File: the interpreter, if the build makes or fetches it; otherwise None.",
        "files": "depset of File: what the interpreter needs, with itself; empty without `file`.",
        "path": "string: an absolute path, or a name that is looked up on the PATH of actions. Empty: the name that the " +
                "packages have in their first line, such as `python3.12`.",
        "version": "string: the version that an interpreter by its path must have, such as `3.12.4`. Empty: that of the packages.",
    },
)

def _python_flag_impl(ctx):
    return [PythonInfo(file = None, files = depset(), path = ctx.build_setting_value, version = "")]

python_flag = rule(
    implementation = _python_flag_impl,
    build_setting = config.string(flag = True),
    doc = "A flag of the command line: the interpreter.",
)
