"""The repository rule packages_repository: the Python packages of the driver (torch, ExecuTorch and what they need).

The repository holds `packages.pex`, which is an input of every action, and the same files unpacked, which local actions
use. Both are built only from locks, or the first is downloaded and the second is made from it. `python.json` describes the
Python of these actions, and is an input too. The driver is not part of the repository: a change to the driver does not build
it again.
"""

load(":compat.bzl", "watch")
load(":downloads.bzl", "check_sha256")

# The extras in pyproject.toml. requirements-EXTRA.lock holds the packages that an extra adds to the lock.
EXTRAS = [
    "delta",
    "ethos-u",
    "gguf",
    "huggingface",
    "openvino",
    "registry",
    "sbom",
    "vgf",
    "watch",
]

_LOCK = Label("//toolchain:requirements.lock")
_LOCKS_OF_EXTRAS = {extra: Label("//toolchain:requirements-{}.lock".format(extra)) for extra in EXTRAS}

_BUILD = """\
exports_files(["packages.pex", "python.json"], visibility = ["//visibility:public"])
"""

# Prints the version, and the path behind all links.
_FIND_PYTHON = """\
import os, sys, venv
print("%d.%d" % sys.version_info[:2], os.path.realpath(sys.executable))
"""

def check_extras(extras, module = ""):
    """Fails if there is no such extra.

    Args:
      extras: list of string.
      module: string, the module that asks for them, for the message; empty for the WORKSPACE file.
    """
    for extra in extras:
        if extra not in EXTRAS:
            fail("There is no extra `{}`. Known: {}.{}".format(
                extra,
                ", ".join(EXTRAS),
                " The module `{}` asks for it.".format(module) if module else "",
            ))

def _locks(repository_ctx):
    """Returns the options of the builder that name locks, each with the path of its lock."""
    attributes = repository_ctx.attr
    of_extras = "--extra" if attributes.requirements == _LOCK else "--covers"
    locks = [("--requirements", watch(repository_ctx, attributes.requirements))]
    locks.append(("--cuda", watch(repository_ctx, attributes._cuda_requirements)))
    locks += [(of_extras, watch(repository_ctx, _LOCKS_OF_EXTRAS[extra])) for extra in sorted(attributes.extras)]
    return locks + [("--more", watch(repository_ctx, lock)) for lock in attributes.more_requirements]

def locked_packages(repository_ctx):
    """Returns the names of the packages in all locks.

    Args:
      repository_ctx: the context of a repository rule that has `LOCK_ATTRS`.

    Returns:
      list of string: names as indexes write them, such as `typing-extensions`.
    """
    check_extras(repository_ctx.attr.extras)
    names = {}
    for option, lock in _locks(repository_ctx):
        for line in repository_ctx.read(lock).split("\n") if option != "--covers" else []:
            name, pinned, _ = line.partition("==")
            if pinned and line[0] not in " #-":
                names[name.partition("[")[0].strip().lower().replace("_", "-").replace(".", "-")] = True
    return sorted(names)

def _download(repository_ctx):
    """Downloads packages.pex, through Bazel's repository cache, and returns the arguments of the builder."""
    packages = repository_ctx.attr.packages
    if sorted(packages) != ["sha256", "url"]:
        fail("`packages` has to have `url` and `sha256`, and nothing else. It has {}.".format(
            ", ".join(["`{}`".format(key) for key in sorted(packages)]),
        ))
    if repository_ctx.attr.pip_args:
        fail("`pip_args` do nothing with `packages`, because pip does not run: remove one of them.")
    check_sha256(packages["url"], packages["sha256"])
    repository_ctx.download(packages["url"], output = "packages.pex", sha256 = packages["sha256"], executable = True)
    return ["--packages", repository_ctx.path("packages.pex")]

def _build_arguments(repository_ctx):
    """Returns the arguments of the builder that let it install the packages with pip."""
    return [
        "--build",
        watch(repository_ctx, repository_ctx.attr._build_requirements),
    ]

def _packages_repository_impl(repository_ctx):
    check_extras(repository_ctx.attr.extras)
    python = repository_ctx.attr.python
    if not python:
        # `which` returns None if it finds nothing.
        python = repository_ctx.which("python3.11") or ""
    if not python:
        fail("No python3.11 on the PATH. Install it, or name another interpreter of Python 3.11 with `python`.")
    found = repository_ctx.execute([python, "-c", _FIND_PYTHON])
    version, _, executable = found.stdout.strip().partition(" ")
    if version != "3.11":
        fail("{} is not a Python 3.11 with its `venv` module (on Debian: python3.11-venv). It says: {}{}".format(
            python,
            found.stdout,
            found.stderr,
        ))
    watch(repository_ctx, executable)

    # The builder's files are watched before it runs: Bazel starts the rule again if it does not know one of them yet.
    builder = watch(repository_ctx, repository_ctx.attr._builder)
    locks = []
    for option, lock in _locks(repository_ctx):
        locks += [option, lock]
    source = _download(repository_ctx) if repository_ctx.attr.packages else _build_arguments(repository_ctx)
    repository_ctx.report_progress("unpacking packages.pex" if repository_ctx.attr.packages else "building packages.pex")
    result = repository_ctx.execute(
        [python, builder] + locks + source + ["--out", repository_ctx.path("."), "--"] + repository_ctx.attr.pip_args,
        timeout = 3600,
        # Unset only the variables that would change what the locks mean. Everything else, such as pip's configuration, is
        # the user's choice.
        environment = {
            "PIP_REQUIREMENT": "",
            "PIP_TARGET": "",
            "PYTHONHOME": "",
            "PYTHONNOUSERSITE": "1",
            "PYTHONPATH": "",
        },
    )
    if result.return_code:
        fail("The packages of rules_executorch cannot be built:\n{}{}".format(result.stdout, result.stderr))
    repository_ctx.file("BUILD", _BUILD, executable = False)

# The locks. Another repository rule reads the names in them.
LOCK_ATTRS = {
    "extras": attr.string_list(
        doc = "Extra packages that some backends and kinds of models need, such as `[\"huggingface\"]`. Known: {}.".format(
            ", ".join(["`{}`".format(extra) for extra in EXTRAS]),
        ),
    ),
    "more_requirements": attr.label_list(
        doc = "Locks in pip's format with packages of your own, which the toolchain has in addition. Every requirement has " +
              "`==` and the sha256 of each of its files.",
        allow_files = True,
    ),
    "requirements": attr.label(
        doc = "A lock in pip's format that replaces the lock of the rules. It has to have the packages of the `extras` too. " +
              "To add packages, use `more_requirements`.",
        allow_single_file = True,
        default = _LOCK,
    ),
    "_cuda_requirements": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:requirements-cuda.lock"),
    ),
}

_PACKAGES_ATTRS = dict(LOCK_ATTRS, **{
    "packages": attr.string_dict(
        doc = "A `packages.pex` that was built before: `{\"url\": \"https://...\", \"sha256\": \"...\"}`. Then pip does not " +
              "run. The file has to have the packages of the lock and of the extras, for this kind of machine.",
    ),
    "pip_args": attr.string_list(
        doc = "More arguments for pip, such as `[\"--extra-index-url\", ...]` with PyTorch's index of CPU builds. pip " +
              "also reads its own configuration. Every file must match a hash in the lock.",
    ),
    "python": attr.string(
        doc = "The path of a Python 3.11. Default: `python3.11` on the PATH.",
    ),
    "_build_requirements": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:requirements-build.lock"),
    ),
    "_builder": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:build_packages.py"),
    ),
})

packages_repository = repository_rule(
    implementation = _packages_repository_impl,
    doc = "Builds `packages.pex` from locks with hashes, or downloads it. It needs Python 3.11. To build it, it needs a " +
          "package index.",
    attrs = _PACKAGES_ATTRS,
)
