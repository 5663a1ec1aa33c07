"""The rule split_packages: the packages in the form for remote executors."""

load(":configuration.bzl", "PythonInfo")

# The environment is that of the actions of the driver (//rules/private:driver.bzl). The tree has to be there: some executors
# make only the directories above it.
_SPLIT = """\
set -eu
python=$(command -v -- "$1") || { echo "There is no $1 on this machine (PATH=$PATH). $2" >&2; exit 1; }
mkdir -p "$5"
exec "$python" -E -s -S "$3" "$4" "$5"
"""

# What to do on a machine without the interpreter.
INTERPRETER_HINT = (
    "Install Python 3.11 there, or say where it is: --@rules_executorch//toolchain:python=PATH. " +
    "A hermetic sandbox also needs --sandbox_add_mount_pair=DIRECTORY"
)

def _split_packages_impl(ctx):
    directory = ctx.actions.declare_directory(ctx.label.name)
    arguments = ctx.actions.args()
    arguments.add(ctx.attr._python[PythonInfo].path)
    arguments.add(INTERPRETER_HINT)
    arguments.add(ctx.file._script)
    arguments.add(ctx.file.packages)
    arguments.add_all([directory], expand_directories = False)
    ctx.actions.run_shell(
        command = _SPLIT,
        arguments = [arguments],
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        execution_requirements = {"block-network": "", "supports-path-mapping": ""},
        inputs = [ctx.file.packages, ctx.file._script, ctx.file._module],
        mnemonic = "ExecutorchPackages",
        outputs = [directory],
        progress_message = "Splitting the packages for remote executors",
    )
    return [DefaultInfo(files = depset([directory]))]

split_packages = rule(
    implementation = _split_packages_impl,
    doc = "Splits a PEX file into files that an action can use without unpacking all of them.",
    attrs = {
        "packages": attr.label(
            doc = "The PEX file that `packages_repository` builds.",
            allow_single_file = True,
            mandatory = True,
        ),
        "_module": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:on_demand.py"),
        ),
        "_python": attr.label(
            default = Label("//toolchain:python"),
        ),
        "_script": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:split_packages.py"),
        ),
    },
)
