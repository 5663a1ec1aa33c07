"""The repository rule packages_repository: the Python packages of the driver (torch, ExecuTorch and what they need).

The repository holds `packages.pex`, which is an input of every action, and the same files unpacked, which local actions
use. Both are built only from locks. The driver is not part of the repository: a change to the driver does not build it
again.
"""

load(":compat.bzl", "watch")

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
exports_files(["packages.pex"], visibility = ["//visibility:public"])
"""

def _extra_locks(repository_ctx):
    """Returns the arguments of the builder that name the locks of the extras."""
    if repository_ctx.attr.extras and repository_ctx.attr.requirements != _LOCK:
        fail("`extras` work only with the lock of the rules. With `requirements`, add their packages to your lock.")
    arguments = []
    for extra in sorted(repository_ctx.attr.extras):
        if extra not in EXTRAS:
            fail("There is no extra `{}`. Known: {}.".format(extra, ", ".join(EXTRAS)))
        arguments += ["--extra", watch(repository_ctx, _LOCKS_OF_EXTRAS[extra])]
    return arguments

def _packages_repository_impl(repository_ctx):
    extras = _extra_locks(repository_ctx)
    python = repository_ctx.attr.python
    if not python:
        # `which` returns None if it finds nothing.
        python = repository_ctx.which("python3.11") or ""
    if not python:
        fail("No python3.11 on the PATH. Install it, or name another interpreter of Python 3.11 with `python`.")
    version = repository_ctx.execute([python, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"])
    if version.stdout.strip() != "3.11":
        fail("{} is not a Python 3.11 with its `venv` module (on Debian: python3.11-venv). It says: {}{}".format(
            python,
            version.stdout,
            version.stderr,
        ))

    repository_ctx.report_progress("building packages.pex")
    result = repository_ctx.execute(
        [
            python,
            watch(repository_ctx, repository_ctx.attr._builder),
            "--requirements",
            watch(repository_ctx, repository_ctx.attr.requirements),
        ] + extras + [
            "--cuda",
            watch(repository_ctx, repository_ctx.attr._cuda_requirements),
            "--build",
            watch(repository_ctx, repository_ctx.attr._build_requirements),
            "--out",
            repository_ctx.path("."),
            "--",
        ] + repository_ctx.attr.pip_args,
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

_PACKAGES_ATTRS = {
    "extras": attr.string_list(
        doc = "Extra packages that some backends and kinds of models need, such as `[\"huggingface\"]`. Known: {}.".format(
            ", ".join(["`{}`".format(extra) for extra in EXTRAS]),
        ),
    ),
    "pip_args": attr.string_list(
        doc = "More arguments for pip, such as `[\"--extra-index-url\", ...]` with PyTorch's index of CPU builds. pip " +
              "also reads its own configuration. Every file must match a hash in the lock.",
    ),
    "python": attr.string(
        doc = "The path of a Python 3.11. Default: `python3.11` on the PATH.",
    ),
    "requirements": attr.label(
        doc = "A lock in pip's format: every requirement has `==` and the sha256 of each of its files. Use another lock " +
              "to add packages of your own.",
        allow_single_file = True,
        default = _LOCK,
    ),
    "_build_requirements": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:requirements-build.lock"),
    ),
    "_builder": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:build_packages.py"),
    ),
    "_cuda_requirements": attr.label(
        allow_single_file = True,
        default = Label("//toolchain:requirements-cuda.lock"),
    ),
}

packages_repository = repository_rule(
    implementation = _packages_repository_impl,
    doc = "Builds `packages.pex` from locks with hashes. It needs Python 3.11. The first build needs a package index.",
    attrs = _PACKAGES_ATTRS,
)
