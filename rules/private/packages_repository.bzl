"""The repository rule packages_repository: the Python packages of the driver (torch, ExecuTorch and what they need).

The packages are in a virtual environment that all workspaces of a user share, and `venv` is a link to it: local actions use
it. `packages.json` has the digest of each package, and is an input of every action. `names.json` has the names of the
packages. `python.json` describes the Python of these actions, and is an input too. All of it depends only on locks, or on a
file that is downloaded. The driver is not part of the repository: a change to the driver does not build it again.
"""

load(":downloads.bzl", "check_sha256")
load(":package_facts.bzl", "CPU_BUILDS", "EXTRAS", "NEWEST_RELEASE", "OLDER_RELEASES", "REQUIRED", "VERSIONS")
load(":platforms.bzl", "check_platform", "host_platform")
load(":pythons.bzl", "about", "check_version", "pythons_on_path")
load(":watch.bzl", "watch")

_LOCK = Label("//toolchain:requirements.lock")
_LOCKS_OF_EXTRAS = {extra: Label("//toolchain:requirements-{}.lock".format(extra)) for extra in EXTRAS}
_LOCKS_OF_RELEASES = {release: Label("//toolchain:requirements-executorch-{}.lock".format(release)) for release in OLDER_RELEASES}
_CPU_LOCK = Label("//toolchain:requirements-cpu.lock")
_CUDA_LOCK = Label("//toolchain:requirements-cuda.lock")

# The interpreters on the PATH.
_PYTHONS = Label("@rules_executorch_host//:pythons.json")

# The environment variables that say where the environments of the user are.
_ENVIRON = ["HOME", "RULES_EXECUTORCH_CACHE", "XDG_CACHE_HOME"]

# What the builder imports.
_BUILDER_MODULES = [Label("//toolchain:locks.py"), Label("//toolchain:packages_file.py")]

_BUILD = """\
load("@rules_executorch//toolchain:configuration.bzl", "packages_file")
load("@rules_executorch//toolchain:split_packages.bzl", "packed_packages")

package(default_visibility = ["//visibility:public"])

exports_files({exported})

packages_file(
    name = "packages",
    file = "{file}",
    names = {names},
)
"""

# The packages as a file, for machines that download it.
_PACKED = """
packed_packages(
    name = "packages.pex",
    packages = ":packages",
)
"""

def _locks(repository_ctx):
    """Returns the options of the builder that name locks, each with the path of its lock."""
    attributes = repository_ctx.attr
    if attributes.version and attributes.requirements:
        fail("`version` and `requirements` both name a release of ExecuTorch: remove one of them.")
    of_extras = "--covers" if attributes.requirements else "--extra"
    locks = [("--requirements", watch(repository_ctx, attributes.requirements or _LOCK))]
    if attributes.version in _LOCKS_OF_RELEASES:
        locks.append(("--instead", watch(repository_ctx, _LOCKS_OF_RELEASES[attributes.version])))
    locks.append(("--cpu", watch(repository_ctx, _CPU_LOCK)))
    locks.append(("--cuda", watch(repository_ctx, _CUDA_LOCK)))
    locks += [(of_extras, watch(repository_ctx, _LOCKS_OF_EXTRAS[extra])) for extra in sorted(attributes.extras)]
    return locks + [("--more", watch(repository_ctx, lock)) for lock in attributes.extra_requirements]

def _download(repository_ctx):
    """Downloads packages.pex, through Bazel's repository cache, and returns the arguments of the builder."""
    packages = repository_ctx.attr.packages
    if sorted(packages) != ["sha256", "url"]:
        fail("`packages` has to have `url` and `sha256`, and nothing else. It has {}.".format(
            ", ".join(["`{}`".format(key) for key in sorted(packages)]),
        ))
    for name in ["pip_args", "torch"]:
        if getattr(repository_ctx.attr, name):
            fail("`{}` does nothing with `packages`, because nothing is installed: remove one of them.".format(name))
    check_sha256(packages["url"], packages["sha256"])
    repository_ctx.download(packages["url"], output = "packages.pex", sha256 = packages["sha256"], executable = True)
    return ["--packages", repository_ctx.path("packages.pex")]

def _build_arguments(repository_ctx):
    """Returns the arguments of the builder that let it install the packages."""
    return [
        "--build",
        watch(repository_ctx, repository_ctx.attr._build_requirements),
        "--torch",
        repository_ctx.attr.torch,
    ]

def _python_of_file(repository_ctx):
    """Returns the version of Python that a downloaded packages.pex is for; empty if it does not tell."""
    first = repository_ctx.execute(["head", "-c", "80", repository_ctx.path("packages.pex")]).stdout.split("\n")[0]
    _, is_script, version = first.partition("#!/usr/bin/env python")
    return version.strip() if is_script else ""

def _chosen_python(repository_ctx, versions):
    """Returns the interpreter that the attributes name, or the first of these versions that is on the PATH."""
    attributes = repository_ctx.attr
    if attributes.python_interpreter_target:
        if attributes.python_interpreter:
            fail("`python_interpreter` and `python_interpreter_target` both name an interpreter: remove one of them.")
        return repository_ctx.path(attributes.python_interpreter_target)
    if attributes.python_interpreter:
        python = attributes.python_interpreter
        found = python if "/" in python else repository_ctx.which(python)  # `which` returns None if it finds nothing
        if not found:
            fail("`python_interpreter`: there is no {} on the PATH.".format(python))
        return found
    for text in [repository_ctx.read(watch(repository_ctx, _PYTHONS)), None]:
        # Bazel keeps the file until the PATH changes: an interpreter may have been installed since.
        pythons = json.decode(text or pythons_on_path(repository_ctx))
        for version in versions:
            if version in pythons["found"]:
                return pythons["found"][version]
    fail("There is no {} on the PATH that can build the packages. {}{}".format(
        " or ".join(["python" + version for version in versions]),
        "".join([problem + ". " for problem in pythons["problems"]]),
        "Install it with its `venv` module (on Debian: python{}-venv), or name another interpreter with {}.".format(
            versions[-1],
            "`python_interpreter` or `python_interpreter_target`",
        ),
    ))

def _preferred(repository_ctx, platform):
    """Returns the versions of Python in the order in which they are looked for: first those with a CPU build of torch."""
    small = CPU_BUILDS.get(platform, [])
    if repository_ctx.attr.torch == "index" or repository_ctx.attr.requirements:
        small = []
    return small + [version for version in VERSIONS if version not in small]

def _find_python(repository_ctx, version, reason, preferred = VERSIONS):
    """Returns the path of the interpreter that builds the packages and runs the driver.

    Args:
      repository_ctx: the context of the repository rule.
      version: string, the version that it must have, or empty.
      reason: string, what asks for this version.
      preferred: list of string, the versions to look for without `version`, in this order.

    Returns:
      string.
    """
    python = _chosen_python(repository_ctx, [version] if version else preferred)
    told = about(repository_ctx, python)
    if not told.version:
        fail("{} cannot build the packages, which need Python {}: {}".format(
            python,
            version or " or ".join(VERSIONS),
            told.problem,
        ))
    if version not in ["", told.version]:
        fail("{} is Python {}, and {} {}.".format(python, told.version, reason, version))
    watch(repository_ctx, told.executable)

    # Behind all links: a virtual environment finds the standard library beside the interpreter.
    return told.executable

def _run_builder(repository_ctx, command):
    """Runs the builder. It prints what it does and how long that took."""
    result = repository_ctx.execute(
        command + ["--out", repository_ctx.path("."), "--"] + repository_ctx.attr.pip_args,
        timeout = 3600,
        # Unset only the variables that would change what the locks mean. Everything else, such as pip's configuration, is
        # the user's choice.
        environment = {
            "PIP_CONSTRAINT": "",
            "PIP_REQUIREMENT": "",
            "PIP_TARGET": "",
            "PYTHONDONTWRITEBYTECODE": "1",  # of its own modules, which are files of the rules
            "PYTHONHOME": "",
            "PYTHONNOUSERSITE": "1",
            "PYTHONPATH": "",
        },
        quiet = False,
    )
    if result.return_code:
        fail("The packages of rules_executorch cannot be built:\n{}{}".format(result.stdout, result.stderr))

def _packages_repository_impl(repository_ctx):
    attributes = repository_ctx.attr
    check_platform(attributes.platform)
    check_version(attributes.python_version)
    here = host_platform(repository_ctx)
    is_foreign = attributes.platform not in ["", here]
    if is_foreign and not attributes.packages:
        fail("pip on this machine ({}) cannot install packages for {}: build packages.pex on such a machine, and name it {}".format(
            here,
            attributes.platform,
            "with `packages`.",
        ))
    source = _download(repository_ctx) if attributes.packages else _build_arguments(repository_ctx)
    of_file = _python_of_file(repository_ctx) if attributes.packages else ""
    if is_foreign:  # any Python can look into the file
        python = _find_python(repository_ctx, "", "")
    elif of_file and attributes.python_version not in ["", of_file]:
        fail("The file of `packages` is for Python {}, and `python_version` is {}.".format(of_file, attributes.python_version))
    elif of_file:
        python = _find_python(repository_ctx, of_file, "the file of `packages` is for Python")
    else:
        python = _find_python(repository_ctx, attributes.python_version, "`python_version` is", _preferred(repository_ctx, here))

    # The builder's files are watched before it runs: Bazel starts the rule again if it does not know one of them yet.
    builder = watch(repository_ctx, attributes._builder)
    for module in _BUILDER_MODULES:
        watch(repository_ctx, module)
    arguments = ["--platform", attributes.platform] if is_foreign else []
    for name in REQUIRED:
        arguments += ["--needs", name]
    for option, lock in _locks(repository_ctx):
        arguments += [option, lock]
    arguments += source
    repository_ctx.report_progress("installing the packages, if no other workspace has")
    _run_builder(repository_ctx, [python, builder] + arguments)
    if attributes.packages and not is_foreign:
        repository_ctx.delete("packages.pex")  # it is unpacked
    repository_ctx.file("BUILD", _BUILD.format(
        exported = repr(["packages.pex"] if is_foreign else ["packages.json", "python.json"]),
        file = "packages.pex" if is_foreign else "packages.json",
        names = repr(json.decode(repository_ctx.read("names.json"))),
    ) + ("" if is_foreign else _PACKED), executable = False)

# The attributes of a toolchain of packages, for MODULE.bazel files and for WORKSPACE files.
PACKAGES_ATTRS = {
    "extra_requirements": attr.label_list(
        doc = "Locks in pip's format with packages of your own, which the toolchain has in addition. Every requirement has " +
              "`==` and the sha256 of each of its files.",
        allow_files = True,
    ),
    "extras": attr.string_list(
        doc = "Extra packages that some backends and kinds of models need: {}.".format(
            ", ".join(["`{}`".format(extra) for extra in EXTRAS]),
        ),
    ),
    "packages": attr.string_dict(
        doc = "A `packages.pex` that was built before, such as by CI: `{\"url\": \"https://...\", \"sha256\": \"...\"}`. Then " +
              "nothing is installed. The file has to have the packages of the lock and of the extras, for the platform.",
    ),
    "pip_args": attr.string_list(
        doc = "More arguments for pip and uv, such as `[\"--extra-index-url\", ...]` with an index of yours. They also read " +
              "their own configurations. Every file must match a hash in the lock.",
    ),
    "platform": attr.string(
        doc = "The machines that the packages run on: `linux_x86_64`, `linux_aarch64` or `osx_aarch64`. For " +
              "another kind of machine than this one, such as executors of another kind, `packages` has to name a file that " +
              "was built there. Default: machines like this one.",
    ),
    "python_interpreter": attr.string(
        doc = "The Python that builds the packages and runs the driver: its path, or its name on the PATH. Default: the " +
              "newest of `python3.13`, `python3.12` and `python3.11` on the PATH that has the module `venv`; first, one with " +
              "a CPU build of torch in the lock.",
    ),
    "python_interpreter_target": attr.label(
        doc = "The same by its label, such as `@python_3_12_host//:python` of rules_python.",
        allow_files = True,
    ),
    "python_version": attr.string(
        doc = "The version of Python, such as `3.12`: the one that is looked for on the PATH. An interpreter of another " +
              "version is refused.",
    ),
    "requirements": attr.label(
        doc = "A lock in pip's format that replaces the lock of the rules. It has to have what the driver needs " +
              "(`dependencies` in `pyproject.toml`), and the packages of the `extras`. To add packages, use " +
              "`extra_requirements`.",
        allow_single_file = True,
    ),
    "torch": attr.string(
        doc = "The build of torch: `cpu`, or `index` for the one on the package index, which on Linux is for CUDA and takes " +
              "gigabytes. Default: `cpu` if the lock has it for the Python and the machine. CPU builds come from the indexes of " +
              "your configuration, or else from PyTorch's, `https://download.pytorch.org/whl/cpu`.",
        values = ["", "cpu", "index"],
    ),
    "version": attr.string(
        doc = "The release of ExecuTorch: {}, or `{}`. Default: the last one.".format(
            ", ".join(["`{}`".format(release) for release in OLDER_RELEASES]),
            NEWEST_RELEASE,
        ),
        values = ["", NEWEST_RELEASE] + OLDER_RELEASES,
    ),
}

packages_repository = repository_rule(
    implementation = _packages_repository_impl,
    doc = "Installs packages from locks with hashes, once for all workspaces of a user, or unpacks a file that it downloads. " +
          "To install them, it needs a package index.",
    attrs = dict(PACKAGES_ATTRS, **{
        "_build_requirements": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:requirements-build.lock"),
        ),
        "_builder": attr.label(
            allow_single_file = True,
            default = Label("//toolchain:build_packages.py"),
        ),
    }),
    environ = _ENVIRON,
)
