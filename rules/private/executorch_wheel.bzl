"""The repository rule executorch_wheel: ExecuTorch's wheel for the machines that an application runs on."""

load(":package_facts.bzl", "VERSIONS")
load(":platforms.bzl", "check_platform")
load(":watch.bzl", "watch")

# pip's names of the platforms that have wheels with a C++ runtime.
_TAGS = {
    "linux_aarch64": "manylinux_2_28_aarch64",
    "linux_x86_64": "manylinux_2_28_x86_64",
}

# The interpreters on the PATH.
_PYTHONS = Label("@rules_executorch_host//:pythons.json")

_BUILD = """\
filegroup(
    name = "wheel",
    srcs = ["{}"],
    visibility = ["//visibility:public"],
)
"""

def _pin(lock):
    """Returns the pin of ExecuTorch in the text of a lock, with its hashes."""
    found = []
    for line in lock.split("\n"):
        if line.startswith("executorch==") or (found and line.startswith("    --hash")):
            found.append(line)
        elif found:
            break
    if not found:
        fail("`requirements`: the lock does not have `executorch==`")
    return "\n".join(found) + "\n"

def _pip_python(repository_ctx):
    """Returns a Python that has pip: that of a virtual environment, since Debian has pip in a package of its own."""
    python = repository_ctx.attr.python_interpreter
    if python:
        python = python if "/" in python else repository_ctx.which(python)
    else:
        found = json.decode(repository_ctx.read(watch(repository_ctx, _PYTHONS)))["found"]
        python = ([found[version] for version in VERSIONS if version in found] or [None])[0]
    if not python:
        fail("There is no Python on the PATH that can download ExecuTorch's wheel: name one with `python_interpreter`.")
    done = repository_ctx.execute([python, "-m", "venv", "venv"])
    if done.return_code:
        fail("{} cannot make a virtual environment:\n{}{}".format(python, done.stdout, done.stderr))
    return repository_ctx.path("venv/bin/python")

def _executorch_wheel_impl(repository_ctx):
    attributes = repository_ctx.attr
    check_platform(attributes.platform)
    if attributes.platform not in _TAGS:
        fail("ExecuTorch has no wheel with a C++ runtime for `{}`, only for {}.".format(
            attributes.platform,
            ", ".join(sorted(_TAGS)),
        ))
    repository_ctx.file("pin.lock", _pin(repository_ctx.read(watch(repository_ctx, attributes.requirements))), executable = False)

    # Its C++ libraries are the same for each version of Python.
    command = [_pip_python(repository_ctx), "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet", "--require-hashes", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", _TAGS[attributes.platform], "--python-version", VERSIONS[-1]]
    environment = {name: "" for name in ["PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_TARGET", "PYTHONHOME", "PYTHONPATH"]}
    done = repository_ctx.execute(
        command + ["--dest", ".", "--requirement", "pin.lock"] + attributes.pip_args,
        environment = environment,
        timeout = 3600,
    )
    repository_ctx.delete("venv")
    wheels = [path.basename for path in repository_ctx.path(".").readdir() if path.basename.endswith(".whl")]
    if done.return_code or not wheels:
        fail("pip cannot download ExecuTorch's wheel for {}:\n{}{}".format(attributes.platform, done.stdout, done.stderr))
    repository_ctx.file("BUILD", _BUILD.format(wheels[0]), executable = False)

executorch_wheel = repository_rule(
    implementation = _executorch_wheel_impl,
    doc = """Downloads ExecuTorch's wheel for other machines than the one that builds, for the attribute `wheel` of an
`executorch_runtime`: the target `:wheel`. pip downloads it, with its own configuration, and checks the hash in the lock.

```starlark
load("@rules_executorch//rules:repositories.bzl", "executorch_wheel")

executorch_wheel(
    name = "executorch_linux_aarch64",
    platform = "linux_aarch64",
)
```

With Bazel 7 and later, a MODULE.bazel file gets the rule with
`use_repo_rule("@rules_executorch//rules:repositories.bzl", "executorch_wheel")`.
""",
    attrs = {
        "pip_args": attr.string_list(
            doc = "More arguments for pip, such as `[\"--extra-index-url\", ...]` with an index of yours.",
        ),
        "platform": attr.string(
            doc = "The machines: `linux_aarch64` or `linux_x86_64`.",
            mandatory = True,
        ),
        "python_interpreter": attr.string(
            doc = "The Python that runs pip: its path, or its name on the PATH. Default: the newest one of the PATH that the " +
                  "rules support.",
        ),
        "requirements": attr.label(
            doc = "The lock with ExecuTorch's version and hashes. It has to be the lock of the toolchain.",
            allow_single_file = True,
            default = Label("//toolchain:requirements.lock"),
        ),
    },
)
