"""The repository of the packages that the driver runs on: torch, ExecuTorch and what they need.

It holds `packages.pex`, an input of every action, built from locks alone, and beside it the same files unpacked, which
local actions find and use. The driver itself is no part of it, so a change to the driver builds nothing here.
"""

load(":compat.bzl", "watch")

# The extras of the driver's package (pyproject.toml): its additions to the lock are requirements-EXTRA.lock.
EXTRAS = [
    "ethos-u",
    "huggingface",
    "openvino",
    "vgf",
    "watch",
]

_LOCK = Label("//toolchain:requirements.lock")
_LOCKS_OF_EXTRAS = {extra: Label("//toolchain:requirements-{}.lock".format(extra)) for extra in EXTRAS}

_BUILD = """\
exports_files(["packages.pex"], visibility = ["//visibility:public"])
"""

def _extra_locks(repository_ctx):
    """Returns the arguments that name the locks of the extras."""
    if repository_ctx.attr.extras and repository_ctx.attr.requirements != _LOCK:
        fail("`extras` add to the rules' own lock: with `requirements`, put what they need into that lock.")
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
        # `which` returns None, which is not a string, where there is none.
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
        # What would change the meaning of the pinned files; the rest, pip's configuration above all, is the user's.
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

packages_repository = repository_rule(
    implementation = _packages_repository_impl,
    doc = "Builds `packages.pex` from hashed requirements. Needs Python 3.11 and, once, a package index.",
    attrs = {
        "extras": attr.string_list(
            doc = "Extras of the driver's package, such as `[\"huggingface\"]`: what a backend or a kind of model needs " +
                  "besides. Known: {}.".format(", ".join(["`{}`".format(extra) for extra in EXTRAS])),
        ),
        "pip_args": attr.string_list(
            doc = "Further arguments of pip, such as `[\"--extra-index-url\", ...]` with PyTorch's index of CPU builds. " +
                  "Every file has to match a hash of the lock all the same. pip's own configuration holds too.",
        ),
        "python": attr.string(
            doc = "Path of a Python 3.11. Default: `python3.11` on the PATH.",
        ),
        "requirements": attr.label(
            allow_single_file = True,
            default = _LOCK,
            doc = "The lock, as pip reads it: every requirement with `==` and the sha256 of each of its files. " +
                  "Name another to add packages of your own.",
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
    },
)
