"""The rules split_packages and installed_packages: the packages in the form for remote executors, from those that are
installed, from a file or from Python libraries. packed_packages makes such a file."""

load("@rules_executorch_host//:host.bzl", "PY_INFOS")
load("//rules/private:package_facts.bzl", "REQUIRED")
load(":configuration.bzl", "INTERPRETER_HINT", "PackagesInfo", "PythonInfo")

# The environment is that of the actions of the driver (//rules/private:driver.bzl). The output directory must be made:
# some executors make only the directories above it. A packages.pex names its Python in its first line.
_SPLIT = """\
set -eu
python=$1 hint=$2 script=$3
shift 3
if [ -z "$python" ]; then
  read -r line < "$2" || true
  case $line in
    '#!'*) python=${line##* } ;;
    *) echo "$2 does not name its Python in its first line" >&2; exit 1 ;;
  esac
fi
found=$(command -v -- "$python") || { echo "There is no $python on this machine (PATH=$PATH). $hint" >&2; exit 1; }
for directory; do :; done
mkdir -p "$directory"
exec "$found" -E -s -S "$script" "$@"
"""

def _split(ctx, packages, inputs, requirements, progress):
    """Declares the action that splits packages, and returns the directory.

    Args:
      ctx: the context of the rule.
      packages: list of what the script reads: File or Args.
      inputs: depset of File.
      requirements: dict, execution requirements.
      progress: string, what Bazel shows.

    Returns:
      File.
    """
    python = ctx.attr.python[PythonInfo]
    directory = ctx.actions.declare_directory(ctx.label.name)
    first = ctx.actions.args()
    first.add(python.file or python.path)
    first.add(INTERPRETER_HINT)
    first.add(ctx.file._script)
    first.add(python.version)
    last = ctx.actions.args()
    last.add_all([directory], expand_directories = False)
    ctx.actions.run_shell(
        command = _SPLIT,
        arguments = [first] + packages + [last],
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        execution_requirements = dict({"block-network": ""}, **requirements),
        inputs = depset([ctx.file._script, ctx.file._module], transitive = [inputs, python.files]),
        mnemonic = "ExecutorchPackages",
        outputs = [directory],
        progress_message = progress,
    )
    return directory

# The packages of a repository are in `venv` beside their packages.json, and so is their Python.
_OF_VENV = """\
set -eu
venv=$(dirname "$(readlink -f -- "$1")")/venv
test -x "$venv/bin/python" || { echo "the packages are not there any more ($venv): fetch them again" >&2; exit 1; }
script=$2
shift 2
exec "$venv/bin/python" -E -s -S "$script" "$@" "$venv"
"""

def _of_venv(ctx, script, arguments, output, progress):
    """Declares an action that reads installed packages.

    They are on this machine only, and no inputs: packages.json has their digests.

    Args:
      ctx: the context of the rule.
      script: File, what the Python of the packages runs.
      arguments: list of string, its arguments. The environment with the packages is the last one.
      output: File.
      progress: string, what Bazel shows.
    """
    packages = ctx.file.packages
    ctx.actions.run_shell(
        command = _OF_VENV,
        arguments = [packages.path, script.path] + arguments,
        env = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONHASHSEED": "0"},
        execution_requirements = {"block-network": "", "no-remote-exec": "1", "no-sandbox": "1"},
        inputs = [packages, script] + ctx.files._module,
        mnemonic = "ExecutorchPackages",
        outputs = [output],
        progress_message = progress,
    )

def _packed_packages_impl(ctx):
    packed = ctx.actions.declare_file(ctx.label.name)
    arguments = [ctx.file.packages.path, packed.path]
    _of_venv(ctx, ctx.file._script, arguments, packed, "Packing the packages")
    return [DefaultInfo(files = depset([packed]))]

packed_packages = rule(
    implementation = _packed_packages_impl,
    doc = "Packs the packages of a repository into one file.",
    attrs = {
        "packages": attr.label(
            doc = "The description of the packages that `packages_repository` writes.",
            allow_single_file = True,
            mandatory = True,
        ),
        "_module": attr.label_list(),
        "_script": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:packages_file.py"),
        ),
    },
)

def _split_packages_impl(ctx):
    if ctx.file.packages.extension == "json":
        directory = ctx.actions.declare_directory(ctx.label.name)
        arguments = ["", "--installed", directory.path]
        _of_venv(ctx, ctx.file._script, arguments, directory, "Splitting the packages for remote executors")
        return [DefaultInfo(files = depset([directory])), ctx.attr.packages[PackagesInfo]]
    packages = ctx.actions.args()
    packages.add(ctx.file.packages)
    directory = _split(
        ctx,
        [packages],
        depset([ctx.file.packages]),
        {"supports-path-mapping": ""},
        "Splitting the packages for remote executors",
    )
    return [DefaultInfo(files = depset([directory])), ctx.attr.packages[PackagesInfo]]

_SCRIPT_ATTRS = {
    "_module": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:on_demand.py"),
    ),
    "_script": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:split_packages.py"),
    ),
}

split_packages = rule(
    implementation = _split_packages_impl,
    doc = "Splits packages into files that an action can use without unpacking all of them.",
    attrs = dict(
        _SCRIPT_ATTRS,
        packages = attr.label(
            doc = "The file or the description that `packages_repository` has.",
            allow_single_file = True,
            mandatory = True,
            providers = [PackagesInfo],
        ),
        python = attr.label(
            doc = "The interpreter.",
            default = Label("//toolchain:python"),
            providers = [PythonInfo],
        ),
    ),
)

def _root(path):
    return "ROOT\t" + path

def _file(file):
    path = file.short_path
    return "{}\t{}".format(path[len("../"):] if path.startswith("../") else "MAIN/" + path, file.path)

def name_in_indexes(name):
    """Returns the name of a package as indexes write it.

    Args:
      name: string, such as `Typing_Extensions`.

    Returns:
      string, such as `typing-extensions`.
    """
    return name.lower().replace("_", "-").replace(".", "-")

def _installed_packages_impl(ctx):
    infos = [dep[py_info] for dep in ctx.attr.deps for py_info in PY_INFOS if py_info in dep]
    files = depset(transitive = [info.transitive_sources for info in infos] + [
        dep[DefaultInfo].default_runfiles.files
        for dep in ctx.attr.deps
    ])

    # Checked once for all programs: a model may import the packages with a name here.
    names = {
        name_in_indexes(file.dirname.split("/")[-1].split("-")[0]): True
        for file in files.to_list()
        if file.basename == "METADATA" and file.dirname.endswith(".dist-info")
    }
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        fail("the driver needs packages that `deps` do not have: {}. Lock them together with torch: {}".format(
            ", ".join(missing),
            "`dependencies` in pyproject.toml of rules_executorch has their versions",
        ), attr = "deps")

    # In a file, with a line for each of tens of thousands of files.
    listing = ctx.actions.args()
    listing.set_param_file_format("multiline")
    roots = depset(transitive = [info.imports for info in infos], order = "preorder").to_list()
    listing.add_all([
        root.replace(ctx.workspace_name + "/", "MAIN/", 1) if root.startswith(ctx.workspace_name + "/") else root
        for root in roots
    ], map_each = _root)
    listing.add_all(files, map_each = _file)
    list_file = ctx.actions.declare_file(ctx.label.name + ".txt")
    ctx.actions.write(list_file, listing)
    arguments = ctx.actions.args()
    arguments.add("--files", list_file)

    # The script opens only the files in the list. A sandbox would first make a link for each file.
    directory = _split(
        ctx,
        [arguments],
        depset([list_file], transitive = [files]),
        {"no-sandbox": "1"},
        "Packing the Python packages of %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([directory])), PackagesInfo(names = sorted(names))]

installed_packages = rule(
    implementation = _installed_packages_impl,
    doc = "Packs the installed packages of Python libraries into files that an action can use quickly.",
    attrs = dict(
        _SCRIPT_ATTRS,
        deps = attr.label_list(
            doc = "The packages: `py_library` and other rules that provide `PyInfo`, such as `@pypi//torch`.",
            mandatory = True,
            providers = [[py_info] for py_info in PY_INFOS],
        ),
        python = attr.label(
            doc = "The interpreter, a `python_of_build`.",
            mandatory = True,
            providers = [PythonInfo],
        ),
    ),
)
